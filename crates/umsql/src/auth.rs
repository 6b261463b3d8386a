//! The server's side of SCRAM-SHA-256 (RFC 5802 and 7677).
//!
//! The slow hash is computed once, when the server starts, and only the two keys derived from it
//! are kept. So checking a login takes only a few fast hashes. Channel binding is not offered.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::error::{Result, SqlError};

pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";
const ITERATIONS: u32 = 4096;
/// The SQLSTATE of a login with a wrong password.
pub(crate) const WRONG_PASSWORD: &str = "28P01";

type Key = [u8; 32];

/// What the server stores instead of the password.
#[derive(Debug, Clone)]
pub(crate) struct Verifier {
    salt: [u8; 16],
    stored_key: Key,
    server_key: Key,
}

impl Verifier {
    pub(crate) fn new(password: &str) -> Verifier {
        let salt = random();
        let mut salted = Key::default();
        pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), &salt, ITERATIONS, &mut salted);
        Verifier {
            salt,
            stored_key: Sha256::digest(mac(&salted, b"Client Key")).into(),
            server_key: mac(&salted, b"Server Key"),
        }
    }
}

/// Returns `N` unpredictable bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has a source of random bytes");
    bytes
}

fn mac(key: &[u8], data: &[u8]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key for HMAC");
    mac.update(data);
    mac.finalize().into_bytes().into()
}

/// A login between its two messages.
#[derive(Debug)]
pub(crate) struct Login {
    gs2_header: String,
    nonce: String,
    /// The text that both sides sign, as far as it has been exchanged.
    signed: String,
}

impl Login {
    /// Takes the client's first message, and returns the answer.
    pub(crate) fn begin(verifier: &Verifier, first: &str) -> Result<(Login, String)> {
        let malformed = || SqlError::fatal("08P01", "malformed SCRAM message");
        let mut parts = first.splitn(3, ',');
        let binding = parts.next().unwrap_or_default();
        let (authzid, bare) =
            (parts.next().ok_or_else(malformed)?, parts.next().ok_or_else(malformed)?);
        if !matches!(binding, "n" | "y") {
            return Err(SqlError::fatal("08P01", "channel binding is not supported"));
        }
        let client_nonce =
            bare.split(',').find_map(|part| part.strip_prefix("r=")).ok_or_else(malformed)?;
        let nonce = format!("{client_nonce}{}", BASE64.encode(random::<18>()));
        let answer = format!("r={nonce},s={},i={ITERATIONS}", BASE64.encode(verifier.salt));
        let login = Login {
            gs2_header: format!("{binding},{authzid},"),
            nonce,
            signed: format!("{bare},{answer}"),
        };
        Ok((login, answer))
    }

    /// Takes the client's last message, and returns the server's own proof if the password was
    /// right.
    pub(crate) fn finish(self, verifier: &Verifier, last: &str) -> Result<String> {
        let malformed = || SqlError::fatal("08P01", "malformed SCRAM message");
        let (without_proof, proof) = last.rsplit_once(",p=").ok_or_else(malformed)?;
        let mut parts = without_proof.split(',');
        let binding =
            parts.next().and_then(|part| part.strip_prefix("c=")).ok_or_else(malformed)?;
        let nonce = parts.next().and_then(|part| part.strip_prefix("r=")).ok_or_else(malformed)?;
        if binding != BASE64.encode(&self.gs2_header) || nonce != self.nonce {
            return Err(malformed());
        }
        let proof: Key = BASE64
            .decode(proof)
            .ok()
            .and_then(|proof| proof.try_into().ok())
            .ok_or_else(malformed)?;

        let signed = format!("{},{without_proof}", self.signed);
        let signature = mac(&verifier.stored_key, signed.as_bytes());
        let mut client_key = proof;
        client_key.iter_mut().zip(signature).for_each(|(byte, other)| *byte ^= other);
        let found: Key = Sha256::digest(client_key).into();
        // The loop has no early exit, because its duration must not reveal how much of the key was
        // right.
        let difference = found.iter().zip(verifier.stored_key).fold(0, |sum, (a, b)| sum | (a ^ b));
        if difference != 0 {
            return Err(SqlError::fatal(WRONG_PASSWORD, "password authentication failed"));
        }
        Ok(format!("v={}", BASE64.encode(mac(&verifier.server_key, signed.as_bytes()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_logins_are_refused() {
        let verifier = Verifier::new("secret");
        for first in ["", "n", "n,,", "n,,n=x", "p=tls-unique,,n=,r=abc"] {
            assert_eq!(Login::begin(&verifier, first).unwrap_err().code, "08P01", "{first}");
        }
        for last in ["", "c=biws", "c=biws,r=x,p=", "c=biws,r=abc,p=AAAA", ",p="] {
            let (login, _) = Login::begin(&verifier, "n,,n=,r=abc").unwrap();
            assert_eq!(login.finish(&verifier, last).unwrap_err().code, "08P01", "{last}");
        }
    }
}
