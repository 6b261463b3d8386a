//! A connection in memory, for tests: the test puts in what its client sends, and takes out what
//! the session answers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::Conn;

/// The connection.
#[derive(Default)]
pub(crate) struct MemoryConn {
    pub user: u64,
    pub input: VecDeque<u8>,
    pub output: Vec<u8>,
    /// Called when the session's next request is asked for. Without it, no statement may be
    /// deferred.
    pub resume: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl MemoryConn {
    pub fn of(user: u64) -> MemoryConn {
        MemoryConn { user, ..MemoryConn::default() }
    }
}

impl Conn for MemoryConn {
    fn user(&self) -> u64 {
        self.user
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match io::Read::read(&mut self.input, buf)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read(buf)
    }

    fn resume(&self) -> Box<dyn FnOnce() + Send> {
        let resume = self.resume.clone();
        Box::new(move || resume.expect("nothing is deferred")())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.extend(bytes);
        Ok(())
    }
}
