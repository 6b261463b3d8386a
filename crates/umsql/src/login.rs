//! The login of a session: the first packet, the check of the password, and the parameters that the
//! server reports.

use crate::accounts::Role;
use crate::auth::{Binding, Login, MECHANISM, MECHANISM_PLUS, WRONG_PASSWORD};
use crate::error::{Result, SqlError};
use crate::host::{self, Conn};
use crate::session::{Phase, Session};
use crate::wire::message::{Body, Startup, utf8};

/// The longest name of a user that is logged, in characters.
const NAME_MAX: usize = 64;

impl Session {
    /// Returns true once the client has logged in. A host may allow less time before that.
    pub fn is_logged_in(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Lets only owners log in, as on the administrator's port.
    pub fn only_for_owners(mut self) -> Session {
        self.owners_only = true;
        self
    }

    /// Handles the first packet. Returns false if the connection must be closed.
    pub(crate) fn startup(&mut self, conn: &mut dyn Conn, packet: &[u8]) -> Result<bool> {
        match Startup::decode(packet)? {
            Startup::Encrypt { kind } => self.answer_encryption(conn, kind),
            Startup::Cancel { pid, secret } => {
                self.server.cancel(pid, secret);
                Ok(false)
            }
            Startup::Begin { minor, parameters } => {
                let user =
                    parameters.iter().find(|(name, user)| name == "user" && !user.is_empty());
                let (_, user) = user.ok_or_else(|| {
                    let message = "no PostgreSQL user name specified in startup packet";
                    SqlError::fatal("28000", message)
                })?;
                self.account = user.as_str().into();
                self.negotiate(minor, &parameters);
                self.take_parameters(&parameters)?;
                let uid = conn.peer_uid();
                self.check_encrypted(uid)?;
                match self.server.admit(&self.account, uid)? {
                    Some(role) => self.welcome(conn, role)?,
                    None => {
                        self.phase = Phase::Login;
                        let plus = self.stream.end_point().map(|_| MECHANISM_PLUS);
                        let offered = plus.into_iter().chain([MECHANISM, ""]);
                        let offered: String = offered.map(|name| format!("{name}\0")).collect();
                        self.out.authentication(10, offered.as_bytes());
                    }
                }
                Ok(true)
            }
        }
    }

    /// Answers a request for a newer minor version, or with unknown protocol options: reports the
    /// version that this server supports.
    fn negotiate(&mut self, minor: u16, parameters: &[(String, String)]) {
        let unknown: Vec<&str> = parameters
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|n| n.starts_with("_pq_."))
            .collect();
        if minor == 0 && unknown.is_empty() {
            return;
        }
        self.out.message(b'v', |body| {
            body.extend(0x0003_0000u32.to_be_bytes());
            body.extend((unknown.len() as u32).to_be_bytes());
            for name in unknown {
                body.extend(name.bytes());
                body.push(0);
            }
        });
    }

    /// Handles a message of the login. Returns false if the connection must be closed.
    pub(crate) fn password(&mut self, conn: &mut dyn Conn, tag: u8, body: &[u8]) -> Result<bool> {
        if tag == b'X' {
            return Ok(false);
        }
        if tag != b'p' {
            return Err(SqlError::fatal("08P01", "expected a SASL response"));
        }
        let mut body = Body::new(body);
        match std::mem::replace(&mut self.phase, Phase::Login) {
            Phase::Login => {
                let binding = match (body.string()?, self.stream.end_point()) {
                    (MECHANISM, None) => Binding::Impossible,
                    (MECHANISM, Some(_)) => Binding::Offered,
                    (MECHANISM_PLUS, Some(end_point)) => Binding::To(end_point),
                    _ => {
                        let message = "the client selected an invalid SASL mechanism";
                        return Err(SqlError::fatal("28000", message));
                    }
                };
                let first = utf8(body.value()?.unwrap_or_default())?;
                let Some(accounts) = &self.server.accounts else { return Ok(false) };
                let account = accounts.account(&self.account);
                let (login, answer) = Login::begin(account.verifier, first, binding)?;
                self.phase = Phase::Proof(Box::new(login), account.role);
                self.out.authentication(11, answer.as_bytes());
            }
            Phase::Proof(login, role) => {
                let last = utf8(body.rest())?;
                let answer = host::go_preemptive("PREEMPTIVE_SCRAM", move || login.finish(last))?;
                let answer = answer.ok_or_else(|| {
                    let name = &self.account;
                    let message = format!("password authentication failed for user \"{name}\"");
                    SqlError::fatal(WRONG_PASSWORD, message)
                })?;
                self.out.authentication(12, answer.as_bytes());
                self.welcome(conn, role)?;
            }
            Phase::Startup | Phase::Ready => return Ok(false),
        }
        Ok(true)
    }

    /// Tells the client that its login failed. The host calls this after a pause, and then closes
    /// the connection.
    pub(crate) fn refuse(&mut self, conn: &mut dyn Conn) {
        if let Some(error) = self.refusal.take() {
            self.out.bytes.clear();
            self.out.error(&SqlError { fatal: true, ..error }, None);
            let _ = self.flush(conn);
        }
    }

    /// Returns whether the login has failed, and the client has not been told yet.
    pub(crate) fn has_failed(&self) -> bool {
        self.refusal.is_some()
    }

    /// Returns the name that the client gave, as far as it fits in a line of the log.
    pub(crate) fn claimed_user(&self) -> String {
        self.account.chars().take(NAME_MAX).collect()
    }

    fn welcome(&mut self, conn: &mut dyn Conn, role: Role) -> Result<()> {
        if self.owners_only && role != Role::Owner {
            let message = format!("user \"{}\" may not use the administrator's port", self.account);
            return Err(SqlError::fatal("28000", message));
        }
        if !conn.logged_in() {
            if conn.is_closing() {
                let message = "the login took too long, or the server needs the connection's place";
                return Err(SqlError::fatal("57P01", message));
            }
            return Err(SqlError::fatal("53300", "sorry, too many clients already"));
        }
        self.role = role;
        self.phase = Phase::Ready;
        self.out.authentication(0, b"");
        let account = self.account.clone();
        let reported = [
            ("server_version", "15.0"),
            ("server_encoding", "UTF8"),
            ("is_superuser", if role == Role::Owner { "on" } else { "off" }),
            ("session_authorization", &account),
            ("integer_datetimes", "on"),
        ];
        for (name, value) in reported {
            self.out.parameter_status(name, value);
        }
        for (name, value) in self.config.reported() {
            self.out.parameter_status(name, &value);
        }
        let (pid, secret) = self.server.keys.create(self.user, conn.peer());
        self.server.engine.clients.add(pid, self.stream.encryption());
        self.out.backend_key(pid, secret);
        self.ready();
        Ok(())
    }
}
