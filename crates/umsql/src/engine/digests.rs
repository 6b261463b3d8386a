//! Functions of random numbers, and `md5`.

use md5::{Digest, Md5};
use rusqlite::types::Value;
use rusqlite::{Connection, Result};

use super::scalar::{deterministic, scalar};
use super::steps::{Steps, failed};
use super::values::{PIECE, bytes};
use crate::wire::hex::uuid_text;

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    scalar(connection, "random", 0, |_| {
        // As many bits as a double has digits.
        let bits = u64::from_ne_bytes(random()?) >> 11;
        Ok(Value::Real(bits as f64 / 2f64.powi(53)))
    })?;
    scalar(connection, "gen_random_uuid", 0, |_| {
        let mut bytes: [u8; 16] = random()?;
        // Version 4, and the variant of RFC 9562.
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Value::Text(uuid_text(&bytes)))
    })?;
    deterministic(connection, "md5", 1, |context| {
        let Some(bytes) = bytes(context.get_raw(0))? else { return Ok(Value::Null) };
        let (mut digest, mut steps) = (Md5::new(), Steps::default());
        for piece in bytes.chunks(PIECE) {
            steps.bytes(piece.len())?;
            digest.update(piece);
        }
        let hex = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Value::Text(hex))
    })
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| failed("the system gave no random bytes"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    #[test]
    fn digests_are_known_and_random_numbers_differ() {
        let db = Connection::open_in_memory().unwrap();
        super::register(&db).unwrap();
        let text = |sql: &str| db.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(text("select md5('abc')"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(text("select md5(x'')"), "d41d8cd98f00b204e9800998ecf8427e");
        let uuid = text("select gen_random_uuid()");
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"));
        assert!("89ab".contains(&uuid[19..20]));
        assert_ne!(uuid, text("select gen_random_uuid()"));
        assert_eq!(
            text("select quote(random() >= 0 and random() < 1 and random() <> random())"),
            "1"
        );
    }
}
