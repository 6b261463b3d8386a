//! Decodes frames, and the messages that a client sends.
//!
//! A frame is a tag byte and a length, which counts itself but not the tag, and a body. The first
//! packet of a connection has no tag. [`frame_len`] returns the length of the frame at the front of
//! the input. It refuses a length that is too large before it reads the bytes. [`Body`] reads
//! fields of one frame and never beyond its end.

use crate::error::{Result, SqlError};

/// Packet codes, which the first packet has instead of a protocol version.
const CANCEL: u32 = 80_877_102;
const SSL: u32 = 80_877_103;
const GSSENC: u32 = 80_877_104;

/// Returns the length of the whole frame at the front of `input`. Returns `None` if its header is
/// not complete.
pub(crate) fn frame_len(input: &[u8], max: usize) -> Result<Option<usize>> {
    let Some(header) = input.get(1..5) else { return Ok(None) };
    let len = u32::from_be_bytes(header.try_into().expect("four bytes")) as usize;
    if len < 4 {
        return Err(SqlError::fatal("08P01", "invalid message length"));
    }
    if len > max {
        return Err(SqlError::fatal(
            "54000",
            format!("a message of {len} bytes exceeds the limit of {max}"),
        ));
    }
    Ok(Some(len + 1))
}

/// Like [`frame_len`], for the first packet, which has no tag.
pub(crate) fn startup_len(input: &[u8], max: usize) -> Result<Option<usize>> {
    let Some(header) = input.get(..4) else { return Ok(None) };
    let len = u32::from_be_bytes(header.try_into().expect("four bytes")) as usize;
    if !(8..=max).contains(&len) {
        return Err(SqlError::fatal("08P01", "invalid length of startup packet"));
    }
    Ok(Some(len))
}

/// The first packet of a connection.
#[derive(Debug, PartialEq)]
pub(crate) enum Startup {
    /// A request for encryption. The answer is `N`: not supported.
    Encrypt {
        /// One bit for each kind: TLS, GSSAPI.
        kind: u8,
    },
    /// A request to cancel the current statement of another connection.
    Cancel {
        /// The number of the other connection.
        pid: u32,
        /// The secret of the other connection.
        secret: u32,
    },
    /// The beginning of a session. The parameters are pairs of name and value.
    Begin {
        /// The requested minor version.
        minor: u16,
        /// `user`, `database`, and options.
        parameters: Vec<(String, String)>,
    },
}

impl Startup {
    pub(crate) fn decode(packet: &[u8]) -> Result<Startup> {
        let mut body = Body::new(packet.get(4..).unwrap_or_default());
        match body.u32()? {
            SSL => Ok(Startup::Encrypt { kind: 1 }),
            GSSENC => Ok(Startup::Encrypt { kind: 2 }),
            CANCEL => Ok(Startup::Cancel { pid: body.u32()?, secret: body.u32()? }),
            version if version >> 16 == 3 => {
                let mut parameters = Vec::new();
                loop {
                    let name = body.string()?;
                    if name.is_empty() {
                        break;
                    }
                    parameters.push((name.to_owned(), body.string()?.to_owned()));
                }
                Ok(Startup::Begin { minor: version as u16, parameters })
            }
            version => Err(SqlError::fatal(
                "0A000",
                format!("unsupported frontend protocol {}.{}", version >> 16, version & 0xffff),
            )),
        }
    }
}

/// Reads the fields of one frame's body.
#[derive(Debug, Clone)]
pub(crate) struct Body<'a> {
    rest: &'a [u8],
}

fn short() -> SqlError {
    SqlError::protocol("insufficient data left in message")
}

impl<'a> Body<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Body<'a> {
        Body { rest: body }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.bytes(2)?.try_into().expect("two bytes")))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.bytes(4)?.try_into().expect("four bytes")))
    }

    /// Reads a text that ends with a zero byte.
    pub(crate) fn string(&mut self) -> Result<&'a str> {
        utf8(self.name()?)
    }

    /// Reads a text that ends with a zero byte, as bytes that may be no valid text.
    pub(crate) fn name(&mut self) -> Result<&'a [u8]> {
        let len = memchr::memchr(0, self.rest).ok_or_else(short)?;
        let name = &self.rest[..len];
        self.rest = &self.rest[len + 1..];
        Ok(name)
    }

    /// Reads a value that is preceded by its length. A length of -1 means null.
    pub(crate) fn value(&mut self) -> Result<Option<&'a [u8]>> {
        match self.u32()? as i32 {
            -1 => Ok(None),
            len => self.bytes(usize::try_from(len).map_err(|_| short())?).map(Some),
        }
    }

    /// Returns the rest of the body.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns an error unless the message ends here.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(SqlError::protocol("invalid message format"))
        }
    }
}

/// Returns `bytes` as text, or PostgreSQL's error for bytes that are not valid UTF-8.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = bytes[error.valid_up_to()];
        SqlError::new("22021", format!("invalid byte sequence for encoding \"UTF8\": 0x{at:02x}"))
    })
}

/// The fields of a Bind message.
#[derive(Debug)]
pub(crate) struct Bind<'a> {
    pub(crate) portal: &'a str,
    pub(crate) statement: &'a [u8],
    pub(crate) parameter_formats: Vec<u16>,
    pub(crate) parameters: Values<'a>,
    pub(crate) result_formats: Vec<u16>,
}

impl<'a> Bind<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Bind<'a>> {
        let mut body = Body::new(body);
        let portal = body.string()?;
        let statement = body.name()?;
        let parameter_formats = formats(&mut body)?;
        let left = body.u16()?;
        let parameters = Values { left, body: body.clone() };
        for _ in 0..left {
            body.value()?;
        }
        let result_formats = formats(&mut body)?;
        body.end()?;
        Ok(Bind { portal, statement, parameter_formats, parameters, result_formats })
    }
}

/// The values of a Bind message, all of which are there.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    left: u16,
    body: Body<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Option<&'a [u8]>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.body.value().expect("it was read before"))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Values<'_> {}

fn formats(body: &mut Body<'_>) -> Result<Vec<u16>> {
    let mut formats = Vec::new();
    for _ in 0..body.u16()? {
        let format = body.u16()?;
        if format > 1 {
            return Err(SqlError::protocol(format!("unsupported format code: {format}")));
        }
        formats.push(format);
    }
    Ok(formats)
}

/// Returns the format of field `index`. No formats mean text for all; one format holds for all.
pub(crate) fn format_of(formats: &[u16], index: usize) -> u16 {
    match formats {
        [] => 0,
        [all] => *all,
        each => each.get(index).copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_refused_before_anything_of_that_size_is_read() {
        assert_eq!(frame_len(b"Q\0\0\0", 100), Ok(None));
        assert_eq!(frame_len(b"Q\0\0\0\x04", 100), Ok(Some(5)));
        assert_eq!(frame_len(b"Q\0\0\0\x03", 100).unwrap_err().code, "08P01");
        assert_eq!(frame_len(b"Q\xff\xff\xff\xff", 100).unwrap_err().code, "54000");
        assert_eq!(startup_len(b"\0\0\0\x07", 100).unwrap_err().code, "08P01");
        assert_eq!(startup_len(b"GET ", 100).unwrap_err().code, "08P01");
    }

    #[test]
    fn a_body_is_never_read_past_its_end() {
        assert!(Body::new(b"abc").u32().is_err());
        assert!(Body::new(b"abc").string().is_err());
        assert!(Body::new(b"\0\0\0\x09abc").value().is_err());
        assert!(Body::new(b"\xff\xff\xff\xf0").value().is_err());
        assert_eq!(Body::new(b"\xff\xff\xff\xff").value(), Ok(None));
        assert!(Bind::decode(b"\0\0\xff\xff").is_err());
        assert!(Bind::decode(b"\0\0\0\0\xff\xff").is_err());
    }

    #[test]
    fn startup_packets_are_distinguished() {
        let begin = b"\0\0\0\x17\0\x03\0\0user\0me\0\0";
        let parameters = vec![("user".to_owned(), "me".to_owned())];
        assert_eq!(Startup::decode(begin), Ok(Startup::Begin { minor: 0, parameters }));
        assert_eq!(
            Startup::decode(b"\0\0\0\x08\x04\xd2\x16\x2f"),
            Ok(Startup::Encrypt { kind: 1 })
        );
        assert_eq!(Startup::decode(b"\0\0\0\x08\0\x02\0\0").unwrap_err().code, "0A000");
        assert!(Startup::decode(b"\0\0\0\x0a\0\x03\0\0ab").is_err());
    }
}
