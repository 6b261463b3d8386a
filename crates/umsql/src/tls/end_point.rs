//! The channel binding `tls-server-end-point` (RFC 5929): a hash of the server's certificate, which
//! both sides of a login sign. A login that is relayed with another certificate fails.
//!
//! The certificate is the server's own file, so what it contains is trusted.

use der::asn1::{AnyRef, ContextSpecific, ObjectIdentifier};
use der::{Decode, Reader, SliceReader, TagNumber};
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

/// RSA with PKCS#1 (RFC 8017). The last number of an identifier says which hash.
const PKCS1: &str = "1.2.840.113549.1.1";
/// RSA-PSS, whose hash is a parameter (RFC 8017).
const PSS: &str = "1.2.840.113549.1.1.10";
/// ECDSA with SHA-1, and with the hashes of the SHA-2 family (RFC 5758).
const ECDSA_SHA1: &str = "1.2.840.10045.4.1";
const ECDSA: &str = "1.2.840.10045.4.3";
/// SHA-1, and the hashes of the SHA-2 family (RFC 5754), as parameters of RSA-PSS.
const SHA1: &str = "1.3.14.3.2.26";
const SHA2: &str = "2.16.840.1.101.3.4.2";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Sha224,
    /// Also for the weaker MD5 and SHA-1, as RFC 5929 wants it.
    Sha256,
    Sha384,
    Sha512,
}

/// Returns the hash of a certificate; `None` if its signature has no hash of its own (Ed25519), or
/// one that is not known here. Then clients cannot bind to it.
pub(super) fn of_certificate(certificate: &[u8]) -> Option<Vec<u8>> {
    Some(match hash_of_signature(certificate)? {
        Hash::Sha224 => Sha224::digest(certificate).to_vec(),
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

/// Returns the hash that the signature of a certificate uses. A certificate is a sequence: what is
/// signed, the algorithm, the signature.
fn hash_of_signature(certificate: &[u8]) -> Option<Hash> {
    let algorithm = SliceReader::new(certificate).ok()?.sequence(|fields| {
        fields.tlv_bytes()?;
        let algorithm = fields.sequence(algorithm)?;
        fields.tlv_bytes()?;
        Ok(algorithm)
    });
    let (id, parameters) = algorithm.ok()?;
    if id == PSS { hash_of_pss(parameters?).ok()? } else { hash_of(&id) }
}

/// Reads an algorithm: its identifier and its parameters.
fn algorithm<'a>(fields: &mut impl Reader<'a>) -> der::Result<(String, Option<AnyRef<'a>>)> {
    Ok((ObjectIdentifier::decode(fields)?.to_string(), Option::decode(fields)?))
}

/// Reads the hash from the parameters of RSA-PSS: the first field, which may be absent.
fn hash_of_pss(parameters: AnyRef<'_>) -> der::Result<Option<Hash>> {
    parameters.sequence(|fields| {
        let hash = ContextSpecific::<AnyRef<'_>>::decode_explicit(fields, TagNumber::N0)?;
        fields.read_slice(fields.remaining_len())?;
        let Some(hash) = hash else { return Ok(Some(Hash::Sha256)) };
        Ok(hash_of(&hash.value.sequence(algorithm)?.0))
    })
}

fn hash_of(id: &str) -> Option<Hash> {
    if id == ECDSA_SHA1 || id == SHA1 {
        return Some(Hash::Sha256);
    }
    match id.rsplit_once('.')? {
        (PKCS1, "4" | "5" | "11") | (ECDSA, "2") | (SHA2, "1") => Some(Hash::Sha256),
        (PKCS1, "14") | (ECDSA, "1") | (SHA2, "4") => Some(Hash::Sha224),
        (PKCS1, "12") | (ECDSA, "3") | (SHA2, "2") => Some(Hash::Sha384),
        (PKCS1, "13") | (ECDSA, "4") | (SHA2, "3") => Some(Hash::Sha512),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SignatureAlgorithm};

    fn certificate(algorithm: &'static SignatureAlgorithm) -> Vec<u8> {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = CertificateParams::new(["a".to_owned()]).unwrap().self_signed(&key);
        certificate.unwrap().der().to_vec()
    }

    #[test]
    fn the_hash_is_that_of_the_signature() {
        let der = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
        assert_eq!(of_certificate(&der), Some(Sha256::digest(&der).to_vec()));
        let der = certificate(&rcgen::PKCS_ECDSA_P384_SHA384);
        assert_eq!(of_certificate(&der), Some(Sha384::digest(&der).to_vec()));
        assert_eq!(of_certificate(&certificate(&rcgen::PKCS_ED25519)), None);
        assert_eq!(of_certificate(b"no certificate"), None);
        assert_eq!(of_certificate(&der[..der.len() - 1]), None);
    }

    #[test]
    fn weak_hashes_are_replaced_as_the_clients_do() {
        for (id, hash) in [
            ("1.2.840.113549.1.1.5", Hash::Sha256),
            ("1.2.840.10045.4.1", Hash::Sha256),
            ("1.2.840.113549.1.1.13", Hash::Sha512),
            ("1.2.840.10045.4.3.1", Hash::Sha224),
        ] {
            assert_eq!(hash_of(id), Some(hash), "{id}");
        }
        assert_eq!(hash_of("1.2.840.113549.1.1.1"), None);
        // RSA-PSS with SHA-384, with SHA-1 (openssl writes it if it is asked for), and without a
        // parameter.
        let parameters =
            b"\x30\x11\xa0\x0f\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\0";
        let hash = |der: &[u8]| hash_of_pss(AnyRef::from_der(der).unwrap()).unwrap();
        assert_eq!(hash(parameters), Some(Hash::Sha384));
        let parameters = b"\x30\x0d\xa0\x0b\x30\x09\x06\x05\x2b\x0e\x03\x02\x1a\x05\0";
        assert_eq!(hash(parameters), Some(Hash::Sha256));
        assert_eq!(hash(b"\x30\0"), Some(Hash::Sha256));
    }
}
