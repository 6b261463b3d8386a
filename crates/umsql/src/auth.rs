//! The server's side of SCRAM-SHA-256 (RFC 5802 and 7677).
//!
//! A [`Verifier`] is what the server knows of a password: two keys that were derived from it by a
//! slow hash, from which the password cannot be computed. The hash is computed once, when the
//! server starts, or by the program that wrote the verifier. So checking a login takes only a few
//! fast hashes.
//!
//! With SCRAM-SHA-256-PLUS both sides also sign which certificate the encrypted connection has (the
//! channel binding `tls-server-end-point`), so an attacker between them cannot relay a login.
//!
//! Authorization identities are not supported. Which account logs in is not known
//! here: PostgreSQL's clients leave the name in their SCRAM message empty.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{Result, SqlError};

pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";
/// The same, with a channel binding.
pub(crate) const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// The SQLSTATE of a login with a wrong password.
pub(crate) const WRONG_PASSWORD: &str = "28P01";
/// The number of rounds of the slow hash, for passwords that the server hashes itself.
pub(crate) const ITERATIONS: u32 = 4096;
const SALT_LEN: usize = 16;

pub(crate) type Key = [u8; 32];

/// What the server stores instead of the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Verifier {
    iterations: u32,
    salt: Box<[u8]>,
    stored_key: Key,
    server_key: Key,
}

impl fmt::Debug for Verifier {
    /// Prints none of the keys: with them one can pretend to be the server.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

impl Verifier {
    /// Hashes a password.
    pub(crate) fn new(password: &str) -> Verifier {
        // A text that has no prepared form is used as it is, as PostgreSQL and its clients do.
        let prepared = stringprep::saslprep(password).unwrap_or(password.into());
        let salt = random::<SALT_LEN>();
        let mut salted = Key::default();
        pbkdf2::pbkdf2_hmac::<Sha256>(prepared.as_bytes(), &salt, ITERATIONS, &mut salted);
        Verifier {
            iterations: ITERATIONS,
            salt: salt.into(),
            stored_key: Sha256::digest(mac(&salted, b"Client Key")).into(),
            server_key: mac(&salted, b"Server Key"),
        }
    }

    /// Reads a verifier as PostgreSQL stores it, in `pg_authid` for example:
    /// `SCRAM-SHA-256$4096:salt$StoredKey:ServerKey`. Returns `None` for any other text.
    pub(crate) fn parse(text: &str) -> Option<Verifier> {
        let (cost, keys) = text.strip_prefix(MECHANISM)?.strip_prefix('$')?.split_once('$')?;
        let (iterations, salt) = cost.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let key = |text: &str| BASE64.decode(text).ok()?.try_into().ok();
        Some(Verifier {
            iterations: iterations.parse().ok().filter(|count| *count > 0)?,
            salt: BASE64.decode(salt).ok().filter(|salt| !salt.is_empty())?.into(),
            stored_key: key(stored_key)?,
            server_key: key(server_key)?,
        })
    }

    /// Returns a verifier that no password satisfies, with the salt that `secret` gives to `name`.
    /// A client cannot distinguish it from a real one, and finds the same salt each time.
    pub(crate) fn mock(secret: &Key, name: &str, iterations: u32) -> Verifier {
        let salt = mac(secret, name.as_bytes())[..SALT_LEN].into();
        Verifier { iterations, salt, stored_key: random(), server_key: random() }
    }

    pub(crate) fn iterations(&self) -> u32 {
        self.iterations
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

fn malformed() -> SqlError {
    SqlError::fatal("08P01", "malformed SCRAM message")
}

/// Whether a login is bound to the encrypted connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Binding<'a> {
    /// It cannot be: the connection is not encrypted, or its certificate has no suitable hash.
    Impossible,
    /// The client has selected the mechanism without it, although the other was offered.
    Offered,
    /// The client has selected the mechanism with it. These bytes identify the certificate.
    To(&'a [u8]),
}

impl<'a> Binding<'a> {
    /// Checks the flag with which the client says what it thinks of channel bindings. Returns the
    /// bytes that both must know.
    fn check(self, flag: &str) -> Result<&'a [u8]> {
        match (self, flag) {
            (Binding::Impossible | Binding::Offered, "n") | (Binding::Impossible, "y") => Ok(&[]),
            (Binding::To(data), "p=tls-server-end-point") => Ok(data),
            (Binding::Offered, "y") => {
                let message = "SCRAM channel binding negotiation error";
                Err(SqlError::fatal("28000", message).hint(
                    "The client supports SCRAM channel binding but thinks the server does not. \
                     However, this server does support channel binding.",
                ))
            }
            (Binding::To(_), "n" | "y") => {
                let message = "malformed SCRAM message: it contains no channel binding";
                Err(SqlError::fatal("08P01", message))
            }
            (Binding::To(_), flag) if flag.starts_with("p=") => {
                Err(SqlError::fatal("08P01", "unsupported SCRAM channel-binding type"))
            }
            (_, flag) if flag.starts_with("p=") => {
                Err(SqlError::fatal("08P01", "channel binding is not supported here"))
            }
            _ => Err(malformed()),
        }
    }
}

/// A login between its two messages.
#[derive(Debug)]
pub(crate) struct Login {
    verifier: Verifier,
    /// What the client must repeat: its flag and what the login is bound to.
    bound_to: Vec<u8>,
    is_bound: bool,
    nonce: String,
    /// The text that both sides sign, as far as it has been exchanged.
    signed: String,
}

impl Login {
    /// Takes the client's first message, and returns the answer.
    pub(crate) fn begin(
        verifier: Verifier,
        first: &str,
        binding: Binding<'_>,
    ) -> Result<(Login, String)> {
        let mut parts = first.splitn(3, ',');
        let flag = parts.next().unwrap_or_default();
        let (authzid, bare) =
            (parts.next().ok_or_else(malformed)?, parts.next().ok_or_else(malformed)?);
        let data = binding.check(flag)?;
        if !authzid.is_empty() {
            return Err(SqlError::fatal("0A000", "authorization identities are not supported"));
        }
        // The name comes first and the nonce second. An extension that must be understood (`m=`)
        // would stand before the name, so it is refused here.
        let rest = bare.strip_prefix("n=").and_then(|rest| rest.split_once(','));
        let nonce = rest.and_then(|(_, rest)| rest.strip_prefix("r=")).ok_or_else(malformed)?;
        let nonce = nonce.split(',').next().unwrap_or_default();
        if nonce.is_empty() || !nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(malformed());
        }
        let nonce = format!("{nonce}{}", BASE64.encode(random::<18>()));
        let (salt, iterations) = (BASE64.encode(&verifier.salt), verifier.iterations);
        let answer = format!("r={nonce},s={salt},i={iterations}");
        let login = Login {
            verifier,
            bound_to: [flag.as_bytes(), b",,", data].concat(),
            is_bound: matches!(binding, Binding::To(_)),
            nonce,
            signed: format!("{bare},{answer}"),
        };
        Ok((login, answer))
    }

    /// Takes the client's last message. Returns the server's own proof; `None` if the password was
    /// wrong.
    pub(crate) fn finish(&self, last: &str) -> Result<Option<String>> {
        let (without_proof, proof) = last.rsplit_once(",p=").ok_or_else(malformed)?;
        let mut parts = without_proof.split(',');
        let binding =
            parts.next().and_then(|part| part.strip_prefix("c=")).ok_or_else(malformed)?;
        let nonce = parts.next().and_then(|part| part.strip_prefix("r=")).ok_or_else(malformed)?;
        if binding != BASE64.encode(&self.bound_to) {
            return Err(match self.is_bound {
                true => SqlError::fatal("28000", "SCRAM channel binding check failed"),
                false => malformed(),
            });
        }
        if nonce != self.nonce {
            return Err(malformed());
        }
        let proof: Key = BASE64
            .decode(proof)
            .ok()
            .and_then(|proof| proof.try_into().ok())
            .ok_or_else(malformed)?;

        let signed = format!("{},{without_proof}", self.signed);
        let signature = mac(&self.verifier.stored_key, signed.as_bytes());
        let mut client_key = proof;
        client_key.iter_mut().zip(signature).for_each(|(byte, other)| *byte ^= other);
        let found: Key = Sha256::digest(client_key).into();
        let answer =
            format!("v={}", BASE64.encode(mac(&self.verifier.server_key, signed.as_bytes())));
        // The duration must not reveal how much of the key was right.
        let right = bool::from(found.ct_eq(&self.verifier.stored_key));
        Ok(right.then_some(answer))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn malformed_logins_are_refused() {
        let verifier = Verifier::new("secret");
        for first in [
            "",
            "n",
            "n,,",
            "n,,n=x",
            "p=tls-unique,,n=,r=abc",
            "n,,r=abc",
            "n,,n=,r=",
            "n,,m=x,n=,r=abc",
            "n,,n=,r=a\u{e4}",
        ] {
            let error = Login::begin(verifier.clone(), first, Binding::Impossible).unwrap_err();
            assert_eq!(error.code, "08P01", "{first}");
        }
        let other =
            Login::begin(verifier.clone(), "n,a=other,n=,r=abc", Binding::Impossible).unwrap_err();
        assert_eq!(other.code, "0A000");
        for last in ["", "c=biws", "c=biws,r=x,p=", "c=biws,r=abc,p=AAAA", ",p="] {
            let (login, _) =
                Login::begin(verifier.clone(), "n,,n=,r=abc", Binding::Impossible).unwrap();
            assert_eq!(login.finish(last).unwrap_err().code, "08P01", "{last}");
        }
    }

    /// Returns whether a client that knows this password logs in, and knows the server.
    pub(crate) fn logs_in(verifier: &Verifier, password: &str) -> bool {
        let bound = bound_login(verifier, password, ("n", b""), Binding::Impossible);
        bound.is_ok_and(|logged_in| logged_in)
    }

    /// The same for a client that sends this flag, and knows these bytes of the certificate.
    fn bound_login(
        verifier: &Verifier,
        password: &str,
        (flag, data): (&str, &[u8]),
        binding: Binding<'_>,
    ) -> Result<bool> {
        let first = format!("{flag},,n=,r=abc");
        let (login, answer) = Login::begin(verifier.clone(), &first, binding)?;
        let part = |prefix| answer.split(',').find_map(|part| part.strip_prefix(prefix)).unwrap();
        let (salt, count) = (BASE64.decode(part("s=")).unwrap(), part("i=").parse().unwrap());
        let mut salted = Key::default();
        pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), &salt, count, &mut salted);
        let client_key = mac(&salted, b"Client Key");
        let bound_to = BASE64.encode([flag.as_bytes(), b",,", data].concat());
        let last = format!("c={bound_to},r={}", part("r="));
        let signed = format!("n=,r=abc,{answer},{last}");
        let stored_key: Key = Sha256::digest(client_key).into();
        let mut proof = mac(&stored_key, signed.as_bytes());
        proof.iter_mut().zip(client_key).for_each(|(byte, other)| *byte ^= other);
        let server = login.finish(&format!("{last},p={}", BASE64.encode(proof)))?;
        let own = mac(&mac(&salted, b"Server Key"), signed.as_bytes());
        Ok(server.is_some_and(|found| found == format!("v={}", BASE64.encode(own))))
    }

    #[test]
    fn a_login_is_bound_to_the_certificate_that_the_client_sees() {
        let verifier = Verifier::new("secret");
        let login = |flag, data, binding| bound_login(&verifier, "secret", (flag, data), binding);
        let end_point = "p=tls-server-end-point";
        assert!(login(end_point, b"hash", Binding::To(b"hash")).unwrap());
        assert!(login("n", b"", Binding::Offered).unwrap());
        assert!(login("y", b"", Binding::Impossible).unwrap());
        let code = |login: Result<bool>| login.unwrap_err().code;
        assert_eq!(code(login(end_point, b"other", Binding::To(b"hash"))), "28000");
        assert_eq!(code(login(end_point, b"", Binding::To(b"hash"))), "28000");
        assert_eq!(code(login("y", b"", Binding::Offered)), "28000");
        for (flag, binding) in [
            (end_point, Binding::Offered),
            (end_point, Binding::Impossible),
            ("n", Binding::To(b"hash")),
            ("y", Binding::To(b"hash")),
            ("p=tls-unique", Binding::To(b"hash")),
        ] {
            assert_eq!(code(login(flag, b"hash", binding)), "08P01", "{flag} {binding:?}");
        }
    }

    #[test]
    fn a_verifier_accepts_its_password_only() {
        let verifier = Verifier::new("open sesame");
        assert!(logs_in(&verifier, "open sesame"));
        assert!(!logs_in(&verifier, "open sesam"));
        // A space that is not ASCII's becomes one (SASLprep), as in the clients.
        assert!(logs_in(&Verifier::new("open\u{a0}sesame"), "open sesame"));
        assert!(!format!("{verifier:?}").contains("key"));
    }

    /// The password and the salt of the example of RFC 7677, as PostgreSQL stores them.
    const STORED: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
        WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn a_verifier_of_postgresql_is_read() {
        assert!(logs_in(&Verifier::parse(STORED).unwrap(), "pencil"));
        for broken in [
            "",
            "pencil",
            "SCRAM-SHA-256",
            "SCRAM-SHA-256$4096:W22Z$WG5d:wfPL",
            &STORED.replace("4096", "0"),
            &STORED.replace("4096", "x"),
            &STORED[..100],
            &STORED.replace("==$", "$"),
            &STORED.replace('$', "#"),
        ] {
            assert_eq!(Verifier::parse(broken), None, "{broken}");
        }
    }
}
