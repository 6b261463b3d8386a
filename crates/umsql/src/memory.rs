//! Accounts of memory: what each client takes of the process, and how much it may take.
//!
//! Nouns. An *account* counts the bytes of one taker: a connection of the engine (SQLite's memory:
//! cached pages, values, sorts) or a session (messages, results, suspended portals). The *budget*
//! of a server is the sum of its accounts. Accounts take their part of it in pieces of [`PIECE`],
//! so that most requests for memory touch only their own account.
//!
//! ```text
//!   SQLite ──(vfs::entry)──▶ the caller's account ──▶ the budget of its server
//!   session ──────────────▶ its own account ───────▶
//! ```
//!
//! SQLite asks for memory without saying for which connection. The worker says it: its word (of
//! `ums`) is the number of its present account, from the lease of a connection to its end.
//!
//! Invariant *Stays*: an account and a budget are never freed, because SQLite's blocks carry the
//! account's number, and the account that of the budget. Account 0 belongs to the process itself,
//! and nothing is counted in it.
//!
//! A request beyond a limit fails; SQLite then reports `SQLITE_NOMEM`, and a session 53200. A small
//! account is not refused for the budget, so clients that take much do not stop those that take
//! little. Memory that the library itself, statistics and the pool of pages use is not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::budget::{Budget, Sum};
use crate::error::SqlError;
use crate::{heaps, host};

/// How many accounts there are. An unused account takes no memory.
const ACCOUNTS: usize = 1 << 16;
/// Accounts take their part of the budget in pieces of this many bytes.
const PIECE: usize = 256 << 10;
/// Up to this many bytes an account is not refused for the budget.
const SMALL: usize = 4 << 20;
/// After this many new bytes SQLite's caller lets others run.
const LOOK_AFTER: usize = 256 << 10;
/// A block of this size is part of a value, or of a sort: a cancelled statement does not get it.
const LARGE: usize = 64 << 10;

/// How much memory and disk clients may take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// What all clients of the process together may take.
    pub server: usize,
    /// What one client's statements may take, with its messages, results and portals.
    pub client: usize,
    /// What one client's temporary files may take.
    pub temporary: u64,
    /// The length of a text or blob, and of a row in a table.
    pub value: usize,
    /// The length of the log. When a reader keeps it from beginning again at that length, the
    /// reader's transaction ends with an error. A transaction that would write more than this ends
    /// with an error, too.
    pub log: u64,
}

impl Limits {
    /// Returns limits for a computer, or a control group, with this much memory: half of it for all
    /// clients, and a sixteenth, from 128 MiB to 1 GiB, for one.
    pub fn of_memory(bytes: usize) -> Limits {
        let client = (bytes / 16).clamp(128 << 20, 1 << 30);
        let server = (bytes / 2).max(client);
        Limits { server, client, temporary: 10 << 30, value: 16 << 20, log: 1 << 30 }
    }
}

static ALL: [Account; ACCOUNTS] = [const { Account::new() }; ACCOUNTS];
/// One more than the largest number that was ever used.
static USED: AtomicUsize = AtomicUsize::new(1);

/// What one connection or session takes.
#[derive(Debug)]
pub(crate) struct Account {
    in_use: AtomicBool,
    /// The user for which it is counted; 0 means none.
    user: AtomicU64,
    /// The number of the budget of its server.
    budget: AtomicUsize,
    is_connection: AtomicBool,
    bytes: AtomicUsize,
    /// Its part of the budget, which is not less than `bytes` unless the account is small.
    reserved: AtomicUsize,
    limit: AtomicUsize,
    /// The new bytes since its caller last looked.
    fresh: AtomicUsize,
    refusals: AtomicU64,
    temporary: AtomicU64,
    temporary_limit: AtomicU64,
}

impl Account {
    const fn new() -> Account {
        Account {
            in_use: AtomicBool::new(false),
            user: AtomicU64::new(0),
            budget: AtomicUsize::new(0),
            is_connection: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            fresh: AtomicUsize::new(0),
            refusals: AtomicU64::new(0),
            temporary: AtomicU64::new(0),
            temporary_limit: AtomicU64::new(0),
        }
    }

    fn budget(&self) -> &'static Sum {
        Sum::of(self.budget.load(Relaxed))
    }

    /// Counts `bytes`. Returns false, and counts nothing, if a limit forbids it.
    fn charge(&self, bytes: usize) -> bool {
        let now = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        if now <= self.limit.load(Relaxed) && self.reserve(now) {
            return true;
        }
        self.bytes.fetch_sub(bytes, Relaxed);
        self.refusals.fetch_add(1, Relaxed);
        self.budget().refusals.fetch_add(1, Relaxed);
        false
    }

    /// Yields if the slice is used up, once for every [`LOOK_AFTER`] bytes. Returns false if the
    /// statement was cancelled and the block is large.
    fn look(&self, bytes: usize) -> bool {
        let fresh = self.fresh.load(Relaxed) + bytes;
        let is_due = fresh >= LOOK_AFTER;
        self.fresh.store(if is_due { 0 } else { fresh }, Relaxed);
        if is_due {
            host::yield_if_due();
        }
        !(is_due && bytes >= LARGE && host::cancelled())
    }

    /// Takes pieces of the budget until they cover `bytes`.
    fn reserve(&self, bytes: usize) -> bool {
        let reserved = self.reserved.load(Relaxed);
        if bytes <= reserved {
            return true;
        }
        let more = (bytes - reserved).next_multiple_of(PIECE);
        if !self.budget().take(more, bytes <= SMALL) {
            return false;
        }
        self.reserved.fetch_add(more, Relaxed);
        true
    }

    /// Counts that `bytes` are free. It never panics, because SQLite frees its blocks by it.
    fn discharge(&self, bytes: usize) {
        let now = self.bytes.fetch_sub(bytes, Relaxed).wrapping_sub(bytes);
        self.keep_reserved(now.next_multiple_of(PIECE) + PIECE);
    }

    /// Moves the account, which was just taken, to this budget, with what covers its bytes. If
    /// blocks of its last use become free meanwhile, nothing is reserved that they could give back.
    fn change_budget(&self, number: usize) {
        let reserved = self.reserved.swap(0, Relaxed);
        let _ = Sum::of(number).take(reserved, true);
        Sum::of(self.budget.swap(number, Relaxed)).give_back(reserved);
        self.reserved.fetch_add(reserved, Relaxed);
    }

    /// Ends the use of the account, which keeps only what covers its bytes.
    fn give_back(&self) {
        self.user.store(0, Relaxed);
        self.keep_reserved(self.bytes.load(Relaxed).next_multiple_of(PIECE));
        self.in_use.store(false, Relaxed);
    }

    /// Gives what is reserved beyond this back to the budget.
    fn keep_reserved(&self, bytes: usize) {
        if self.reserved.load(Relaxed) > bytes
            && let Ok(before) = self
                .reserved
                .fetch_update(Relaxed, Relaxed, |reserved| (reserved > bytes).then_some(bytes))
        {
            self.budget().give_back(before - bytes);
            heaps::given_back(before - bytes);
        }
    }
}

/// Makes room for a block of SQLite's, for the account of the caller. Returns the account's number,
/// or `None` if SQLite does not get the block. May yield, because SQLite asks for memory wherever
/// it does something long.
pub(crate) fn take_block(bytes: usize) -> Option<u32> {
    let number = present();
    if number == 0 {
        return Some(0);
    }
    let account = &ALL[number as usize];
    (account.look(bytes) && account.charge(bytes)).then_some(number)
}

/// Room in the caller's account for memory outside SQLite, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    account: u32,
    bytes: usize,
}

impl Room {
    /// Makes room for a result of this length; `None` if there is none.
    pub(crate) fn take(bytes: usize) -> Option<Room> {
        take_block(bytes).map(|account| Room { account, bytes })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        give_block(self.account, self.bytes);
    }
}

/// Makes room for a block of an account, which has `before` bytes, to get `after` bytes. Returns
/// false if it may not.
pub(crate) fn grow_block(account: u32, before: usize, after: usize) -> bool {
    if account == 0 || after <= before {
        return true;
    }
    let account = &ALL[account as usize];
    account.look(after) && account.charge(after - before)
}

/// Gives back what a block of an account took.
pub(crate) fn give_block(account: u32, bytes: usize) {
    if account > 0
        && let Some(account) = ALL.get(account as usize)
    {
        account.discharge(bytes);
    }
}

/// An account in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    number: usize,
}

impl Taken {
    /// Takes an account, for a connection or for a session, with the limits of one client of the
    /// server with this budget.
    ///
    /// # Errors
    /// 53300 if all are in use.
    pub(crate) fn new(
        is_connection: bool,
        limits: &Limits,
        budget: &Budget,
    ) -> Result<Taken, SqlError> {
        let take = |account: &Account| {
            !account.in_use.load(Relaxed) && !account.in_use.swap(true, Relaxed)
        };
        let number = ALL.iter().skip(1).position(take);
        let number = number.map(|index| index + 1).ok_or_else(|| {
            SqlError::new("53300", "the server has no account of memory for another connection")
        })?;
        USED.fetch_max(number + 1, Relaxed);
        let taken = Taken { number };
        let account = taken.account();
        account.change_budget(budget.number());
        account.is_connection.store(is_connection, Relaxed);
        account.limit.store(limits.client, Relaxed);
        account.temporary_limit.store(limits.temporary, Relaxed);
        account.refusals.store(0, Relaxed);
        Ok(taken)
    }

    fn account(&self) -> &'static Account {
        &ALL[self.number]
    }

    /// Makes this the account of the calling worker, and `user` its user.
    pub(crate) fn begin(&self, user: u64) {
        self.account().user.store(user, Relaxed);
        host::word().store(self.number as u64, Relaxed);
    }

    /// Ends what `begin` began. The account has no user from then on.
    pub(crate) fn end(&self) {
        self.account().user.store(0, Relaxed);
        stop();
    }

    /// Sets the largest number of bytes.
    pub(crate) fn limit_to(&self, bytes: usize) {
        self.account().limit.store(bytes, Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.account().bytes.load(Relaxed)
    }

    /// Returns how often a limit has forbidden something.
    #[cfg(test)]
    pub(crate) fn refusals(&self) -> u64 {
        self.account().refusals.load(Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.account().give_back();
    }
}

/// From here on the calling worker has no account.
pub(crate) fn stop() {
    host::word().store(0, Relaxed);
}

/// What a session keeps in memory, outside SQLite.
#[derive(Debug)]
pub(crate) struct Purse {
    limits: Limits,
    budget: Arc<Budget>,
    user: u64,
    /// `None` while the session keeps next to nothing.
    account: Option<Taken>,
    /// What the session has counted in it. The account may have blocks of its last use, too.
    counted: usize,
}

/// The parts of what a session keeps, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Messages, also those that have not arrived completely.
    pub(crate) input: usize,
    /// The answer, until it is sent.
    pub(crate) output: usize,
    /// Prepared statements, and the parameters of portals.
    pub(crate) objects: usize,
    /// The rows of suspended portals.
    pub(crate) rows: usize,
    /// The buffers of an encrypted stream.
    pub(crate) stream: usize,
}

impl Kept {
    fn sum(self) -> usize {
        self.input + self.output + self.objects + self.rows + self.stream
    }
}

impl Purse {
    pub(crate) fn new(limits: Limits, budget: Arc<Budget>, user: u64) -> Purse {
        Purse { limits, budget, user, account: None, counted: 0 }
    }

    fn empty(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        if let Some(held) = self.account.take() {
            held.account().discharge(counted);
        }
    }

    /// Counts what the session keeps now. `connection` is the account of its connection, whose
    /// limit is what the session leaves.
    ///
    /// # Errors
    /// 53200 if that is too much. What was counted before stays counted.
    pub(crate) fn count(&mut self, kept: Kept, connection: Option<&Taken>) -> Result<(), SqlError> {
        let bytes = kept.sum();
        if bytes < PIECE {
            self.empty();
        } else if self.account.is_none() {
            let account = Taken::new(false, &self.limits, &self.budget)?;
            account.account().user.store(self.user, Relaxed);
            self.account = Some(account);
        }
        let Some(held) = &self.account else {
            connection.into_iter().for_each(|taken| taken.limit_to(self.limits.client));
            return Ok(());
        };
        let engine = connection.map_or(0, Taken::bytes);
        let before = self.counted;
        let foreign = held.bytes().saturating_sub(before);
        held.limit_to(self.limits.client.saturating_sub(engine) + foreign);
        if bytes > before && !held.account().charge(bytes - before) {
            return Err(SqlError::out_of_memory());
        }
        if bytes < before {
            held.account().discharge(before - bytes);
        }
        self.counted = bytes;
        let left = self.limits.client.saturating_sub(bytes);
        connection.into_iter().for_each(|taken| taken.limit_to(left));
        Ok(())
    }
}

impl Drop for Purse {
    fn drop(&mut self) {
        self.empty();
    }
}

/// Returns the number of the calling worker's account; 0 if it has none.
pub(crate) fn present() -> u32 {
    let number = host::word().load(Relaxed) as u32;
    if (number as usize) < ACCOUNTS { number } else { 0 }
}

/// Runs `f`, which a worker runs outside its scheduler, for the worker's account.
pub(crate) fn outside<R>(account: u32, f: impl FnOnce() -> R) -> R {
    struct Before(u64);
    impl Drop for Before {
        fn drop(&mut self) {
            host::word().store(self.0, Relaxed);
        }
    }
    let _before = Before(host::word().swap(u64::from(account), Relaxed));
    f()
}

/// Counts that a temporary file of an account has grown. Returns false if it may not.
pub(crate) fn grow_temporary(account: u32, bytes: u64) -> bool {
    if account == 0 {
        return true;
    }
    let account = &ALL[account as usize];
    let now = account.temporary.fetch_add(bytes, Relaxed) + bytes;
    let may = now <= account.temporary_limit.load(Relaxed);
    if !may {
        account.temporary.fetch_sub(bytes, Relaxed);
        account.refusals.fetch_add(1, Relaxed);
    }
    may
}

/// Counts that a temporary file of an account has become smaller, or has gone.
pub(crate) fn shrink_temporary(account: u32, bytes: u64) {
    if account > 0 {
        ALL[account as usize].temporary.fetch_sub(bytes, Relaxed);
    }
}

/// What one user takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// 0 for connections that no session uses at present.
    pub(crate) user: u64,
    pub(crate) statements: usize,
    pub(crate) session: usize,
    pub(crate) temporary: u64,
    pub(crate) refusals: u64,
}

/// Returns what each user of the server with this budget takes, ordered by user.
pub(crate) fn rows(budget: &Budget) -> Vec<Row> {
    let mut rows = std::collections::BTreeMap::<u64, Row>::new();
    for account in &ALL[1..USED.load(Relaxed)] {
        let is_another = account.budget.load(Relaxed) != budget.number();
        if !account.in_use.load(Relaxed) || is_another {
            continue;
        }
        let user = account.user.load(Relaxed);
        let row = rows.entry(user).or_insert(Row { user, ..Row::default() });
        let bytes = account.bytes.load(Relaxed);
        if account.is_connection.load(Relaxed) {
            row.statements += bytes;
        } else {
            row.session += bytes;
        }
        row.temporary += account.temporary.load(Relaxed);
        row.refusals += account.refusals.load(Relaxed);
    }
    rows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { server: 1 << 40, client: 10 << 20, temporary: 1000, value: 1 << 20, log: 1 << 20 };

    #[test]
    fn an_account_is_refused_beyond_its_limit_and_counts_nothing_then() {
        let budget = Budget::new(LIMITS.server).unwrap();
        let taken = Taken::new(true, &LIMITS, &budget).unwrap();
        let account = taken.account();
        let before = account.bytes.load(Relaxed);
        assert!(account.charge(9 << 20));
        assert!(!account.charge(2 << 20));
        assert_eq!((taken.bytes() - before, taken.refusals()), (9 << 20, 1));
        assert!(account.reserved.load(Relaxed) >= taken.bytes());
        account.discharge(9 << 20);
        assert!(account.reserved.load(Relaxed) <= before + 2 * PIECE);
        assert!(account.charge(10 << 20));
        account.discharge(10 << 20);
    }

    #[test]
    fn an_account_that_is_given_back_keeps_nothing_of_the_budget() {
        let account = Account::new();
        account.limit.store(10 << 20, Relaxed);
        assert!(account.charge(300 << 10));
        account.discharge(300 << 10);
        assert_eq!(account.reserved.load(Relaxed), PIECE, "the next statement soon needs it");
        account.give_back();
        assert_eq!(account.reserved.load(Relaxed), 0);
        assert!(account.charge(PIECE + 1));
        account.give_back();
        assert_eq!(account.reserved.load(Relaxed), 2 * PIECE, "of what is in use");
        account.discharge(PIECE + 1);
        account.give_back();
    }

    #[test]
    fn what_a_session_keeps_is_not_left_for_its_statements() {
        let budget = Arc::new(Budget::new(LIMITS.server).unwrap());
        let connection = Taken::new(true, &LIMITS, &budget).unwrap();
        let mut purse = Purse::new(LIMITS, budget, 1);
        let kept = Kept { input: 6 << 20, ..Kept::default() };
        purse.count(kept, Some(&connection)).unwrap();
        assert!(!connection.account().charge(5 << 20));
        assert!(connection.account().charge(3 << 20));
        let more = Kept { rows: 2 << 20, ..kept };
        assert_eq!(purse.count(more, Some(&connection)).unwrap_err().code, "53200");
        connection.account().discharge(3 << 20);
        purse.count(more, Some(&connection)).unwrap();
        purse.count(Kept::default(), Some(&connection)).unwrap();
        assert!(purse.account.is_none());
        assert!(connection.account().charge(5 << 20));
        connection.account().discharge(5 << 20);
    }

    #[test]
    fn a_session_gives_back_only_what_it_has_counted() {
        let mut purse = Purse::new(LIMITS, Arc::new(Budget::new(1 << 40).unwrap()), 1);
        let kept = Kept { input: 6 << 20, ..Kept::default() };
        purse.count(kept, None).unwrap();
        // A block of the account's last use, which its connection frees later.
        let held = purse.account.as_ref().unwrap();
        let (number, account) = (held.number as u32, held.account());
        assert!(account.charge(1 << 20));
        let more = Kept { rows: 4 << 20, ..kept };
        purse.count(more, None).unwrap();
        purse.count(Kept::default(), None).unwrap();
        assert_eq!(account.bytes.load(Relaxed), 1 << 20);
        give_block(number, 1 << 20);
        assert_eq!(account.bytes.load(Relaxed), 0);
    }

    #[test]
    fn each_server_has_a_budget_of_its_own() {
        let limits = Limits { server: 8 << 20, ..LIMITS };
        let [one, two] = [(); 2].map(|()| Budget::new(limits.server).unwrap());
        let [first, second] = [&one, &two].map(|of| Taken::new(true, &limits, of).unwrap());
        assert!(first.account().charge(7 << 20));
        assert!(second.account().charge(7 << 20), "the other server takes nothing from it");
        let third = Taken::new(true, &limits, &one).unwrap();
        assert!(!third.account().charge(5 << 20));
        assert_eq!((one.refusals(), two.refusals()), (1, 0));
        assert_eq!(one.taken(), first.account().reserved.load(Relaxed));
        assert_eq!(rows(&one).iter().map(|row| row.statements).sum::<usize>(), 7 << 20);
        first.account().discharge(7 << 20);
        drop(first);
        assert_eq!(one.taken(), 0);
        // Blocks that are still there when another server takes the account go with it.
        assert_eq!(two.taken(), 7 << 20);
        let account = second.account();
        account.change_budget(one.number());
        assert_eq!((one.taken(), two.taken()), (7 << 20, 0));
        account.discharge(7 << 20);
    }

    #[test]
    fn temporary_files_are_bounded_for_each_account() {
        let budget = Budget::new(LIMITS.server).unwrap();
        let taken = Taken::new(true, &LIMITS, &budget).unwrap();
        taken.begin(1);
        let mine = present();
        assert!(grow_temporary(mine, 600) && !grow_temporary(mine, 600));
        assert!(grow_temporary(mine, 400));
        shrink_temporary(mine, 600);
        assert!(grow_temporary(mine, 600));
        shrink_temporary(mine, 1000);
        taken.end();
        assert_eq!(present(), 0);
        assert!(grow_temporary(0, 10_000), "what has no account is not limited");
    }

    #[test]
    fn limits_follow_the_memory_of_the_computer() {
        let small = Limits::of_memory(512 << 20);
        assert_eq!((small.server, small.client), (256 << 20, 128 << 20));
        let large = Limits::of_memory(64 << 30);
        assert_eq!((large.server, large.client), (32 << 30, 1 << 30));
    }
}
