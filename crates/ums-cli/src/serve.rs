//! `ums serve`: SQL over the PostgreSQL wire protocol, on user-mode schedulers.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use ums::node::{HiddenOptions, IoChoice, Placement};
use ums::serve::ServeOptions;
use ums::stats::{MetricsServer, StatsSocket};
use ums::{Builder, Node, WorkerKind, monitor};
use umsql::listen::{self, Patience};

use crate::access::{AccessArgs, Fallible, own_user};
use crate::connecting::ConnectionArgs;
use crate::limits::LimitArgs;
use crate::listening::{self, SocketName};
use crate::modes::warn_of_open_modes;
use crate::raw::{keep_large_blocks_apart, trim_heaps, workers_of};
use crate::times::Times;
use crate::tls::TlsArgs;
use crate::words::counted;

const LISTENING: &str = "Listening";
const DATABASE: &str = "Database";
const WORKERS: &str = "Schedulers and workers";
const TIMES: &str = "Limits of time";
const WATCHING: &str = "Watching the server";

/// Options of `ums serve`. Without any it serves a database in the user's data directory on
/// 127.0.0.1:5433.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// The port to listen on, or address and port: 5440, localhost:5440, 0.0.0.0:5440. Any but a
    /// loopback address needs --allow-remote. Port 0: a free one, which the server prints.
    #[arg(long, help_heading = LISTENING, value_name = "[ADDR:]PORT",
          default_value = "127.0.0.1:5433", value_parser = listening::address)]
    listen: SocketAddr,

    /// The folder of the Unix-domain socket, which has the name that PostgreSQL's clients look for
    /// (.s.PGSQL.PORT): psql -h DIR. This user and root need no password there, and others cannot
    /// connect. It is faster than a port. Default: ums in the runtime directory
    /// ($XDG_RUNTIME_DIR), or ums-UID in the temporary one.
    #[arg(long, help_heading = LISTENING, value_name = "DIR")]
    socket_dir: Option<PathBuf>,

    /// Do not create that socket.
    #[arg(long, help_heading = LISTENING, conflicts_with = "socket_dir")]
    no_socket: bool,

    /// The database file; created if it does not exist. Default: ums/ums.db in the user's data
    /// directory ($XDG_DATA_HOME, or ~/.local/share).
    #[arg(long, help_heading = DATABASE, value_name = "FILE")]
    db: Option<PathBuf>,

    /// Let clients read and write the files in this folder and the folders in it, by ATTACH and
    /// BACKUP; may be given several times. Links that lead out of it are not followed. Default:
    /// clients reach no file but the database.
    #[arg(long, help_heading = DATABASE, value_name = "DIR")]
    file_dir: Vec<PathBuf>,

    /// The file system under the database: ums (a wait for the disk parks the worker, and commits
    /// share syncs), direct (the same, read past the kernel's page cache), or host (SQLite's own,
    /// which blocks the thread), for comparison.
    #[arg(long, help_heading = DATABASE, value_enum, default_value_t = Vfs::Ums)]
    vfs: Vfs,

    /// What workers are made of: kernel threads, fibers (faster switches), or threads that are
    /// switched to like fibers.
    #[arg(long, help_heading = WORKERS, value_enum, default_value_t = Workers::Thread)]
    workers: Workers,

    /// Number of schedulers. Default: one for each processor that this process may use.
    #[arg(long, help_heading = WORKERS, value_name = "N")]
    schedulers: Option<usize>,

    /// Maximum number of workers in all; further requests queue. Default: 512 for up to four
    /// processors, and more for more.
    #[arg(long, help_heading = WORKERS, value_name = "N")]
    max_workers: Option<usize>,

    /// Detect workers that block in system calls and page faults, and let other workers run
    /// meanwhile. Not with fibers. Pins each scheduler's threads to one processor.
    #[arg(long, help_heading = WORKERS)]
    detect_blocking: bool,

    /// How users and their requests are distributed over schedulers.
    #[arg(long, help_heading = WORKERS, value_enum, default_value_t = Place::Hinted)]
    placement: Place,

    /// SQL Server 2000's behaviour as a whole: classic placement, first in first out, 255 workers.
    #[arg(long, help_heading = WORKERS, conflicts_with_all = ["placement", "max_workers"])]
    classic: bool,

    /// The I/O back end: auto (the best that works here), uring (not with thread workers), epoll or
    /// sync. UMS_IO in the environment overrides it.
    #[arg(long, help_heading = WORKERS, value_name = "NAME", default_value = "auto")]
    io: IoChoice,

    /// Maximum number of requests that wait for a worker on one scheduler; further ones are refused
    /// with an error.
    #[arg(long, help_heading = WORKERS, value_name = "N", default_value_t = 10_000)]
    queue_limit: usize,

    /// Refuse requests that have waited this many seconds for a worker. Default: never.
    #[arg(long, help_heading = WORKERS, value_name = "SECONDS")]
    queue_timeout: Option<u64>,

    /// Close connections that send nothing for this many seconds. Default: never.
    #[arg(long, help_heading = TIMES, value_name = "SECONDS")]
    idle_timeout: Option<u64>,

    #[command(flatten, next_help_heading = TIMES)]
    times: Times,

    #[command(flatten, next_help_heading = "Numbers of connections")]
    connections: ConnectionArgs,

    #[command(flatten, next_help_heading = "What clients may take")]
    limits: LimitArgs,

    /// Also listen here for one administrator connection, which has workers of its own and is
    /// served even if all others are stuck. Loopback only.
    #[arg(long, help_heading = LISTENING, value_name = "[ADDR:]PORT",
          value_parser = listening::address)]
    admin: Option<SocketAddr>,

    /// Serve statistics over HTTP: /metrics for Prometheus, and /json. Loopback only, because there
    /// is no authentication.
    #[arg(long, help_heading = WATCHING, value_name = "[ADDR:]PORT",
          value_parser = listening::address)]
    metrics: Option<SocketAddr>,

    /// The socket that ums stats and ums top use, for this user only. Default: PID.sock in ums in
    /// the runtime directory, or in ums-UID in the temporary one.
    #[arg(long, help_heading = WATCHING, value_name = "FILE")]
    stats_socket: Option<PathBuf>,

    /// Do not create that socket.
    #[arg(long, help_heading = WATCHING, conflicts_with = "stats_socket")]
    no_stats_socket: bool,

    /// Report workers that do not yield for this many milliseconds, and anything else that is
    /// stuck, on stderr. 0: no monitor and no reports.
    #[arg(long, help_heading = WATCHING, value_name = "MS", default_value_t = 200)]
    stall: u64,

    /// Report a wait for a file that takes longer than this many milliseconds (0: never).
    #[arg(long, help_heading = WATCHING, value_name = "MS", default_value_t = 15_000)]
    slow_io: u64,

    /// Do not record the schedulers' last events. Then there is nothing to trace, and a crash
    /// leaves no last events.
    #[arg(long, help_heading = WATCHING)]
    no_ring: bool,

    #[command(flatten, next_help_heading = "Logging in")]
    access: AccessArgs,

    #[command(flatten, next_help_heading = "Encrypted connections")]
    tls: TlsArgs,

    /// Seconds that running requests get to finish after SIGTERM or Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Workers {
    /// A kernel thread for each worker: sound with any code.
    Thread,
    /// A fiber for each worker, on one kernel thread per scheduler.
    Fiber,
    /// A thread for each worker, switched to like a fiber (x86-64 or aarch64, with glibc).
    Context,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Vfs {
    /// The engine's own: a wait for the disk parks the worker.
    Ums,
    /// The same, and the database is read past the kernel's page cache (O_DIRECT).
    Direct,
    /// SQLite's own.
    Host,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Place {
    /// A user stays on the scheduler that had the fewest users when it connected.
    Classic,
    /// A request goes to the user's scheduler unless that is loaded 20 % above the least loaded.
    Hinted,
    /// Each request goes to the least loaded scheduler.
    LeastLoaded,
    /// Each request goes to the user's scheduler; new users to the least loaded.
    AlwaysPreferred,
}

impl ServeArgs {
    /// Returns an error if options do not go together, or name what this server never serves.
    fn check(&self) -> Fallible<()> {
        if let Some(text) = conflict(self.workers, self.detect_blocking, self.io) {
            return Err(text.into());
        }
        let (admin, metrics) = (("--admin", self.admin), ("--metrics", self.metrics));
        for (option, address) in [admin, metrics] {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
                return Err(format!(
                    "{option} {address}: it must be a loopback address, such as \
                    127.0.0.1:{}",
                    address.port()
                )
                .into());
            }
        }
        self.access.check(self.listen)?;
        let folder = self.db.as_deref().and_then(|db| whole(db).parent().map(Path::to_owned));
        match folder.filter(|folder| !folder.is_dir()) {
            Some(folder) => Err(format!(
                "there is no folder {}: create it, or name another file with --db (58P01)",
                folder.display()
            )
            .into()),
            None => Ok(()),
        }
    }
}

/// Returns why these options do not go together.
fn conflict(workers: Workers, detect_blocking: bool, io: IoChoice) -> Option<&'static str> {
    match (workers, detect_blocking, io) {
        (Workers::Fiber, true, _) => Some(
            "--workers fiber and --detect-blocking do not go together: the fibers of a scheduler \
             share one thread, and block with it. Choose --workers thread or context, or leave \
             --detect-blocking out",
        ),
        (Workers::Thread, _, IoChoice::Uring) => Some(
            "--io uring and --workers thread do not go together: a ring belongs to one thread, \
             and each worker is another. Choose --workers fiber or context, or leave --io out",
        ),
        (Workers::Context, true, IoChoice::Uring) => Some(
            "--io uring and --detect-blocking do not go together: a ring belongs to one thread, \
             and several take turns where blocking is detected. Leave one of them out",
        ),
        _ => None,
    }
}

/// Returns a path that begins at the root.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Runs the command.
pub fn run(args: &ServeArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ums serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &ServeArgs) -> Fallible<()> {
    let mut signals = take_signals()?;
    raise_descriptor_limit();
    keep_files_private();
    ums::stats::print_last_events_on_crash();
    // Whatever may be refused comes before the first file: a server that cannot listen leaves
    // neither a database nor its folder behind.
    args.check()?;
    let tls = args.tls.load()?;
    let doors = Doors::open(args)?;
    let node = builder(args)?.build()?;
    node.print_stacks_on_sigusr2()?;
    let metrics = args.metrics.map(|address| serve_metrics(&node, address)).transpose()?;
    serve_stats(args, &node)?;

    let mut settings = settings(args)?;
    settings.tls = tls.clone();
    settings.tls_only = args.tls.only();
    let database = settings.database.clone();
    let access = args.access.access(&database)?;
    settings.accounts = access.accounts.clone();
    settings.local_users = vec![own_user(), 0];
    keep_large_blocks_apart();
    umsql::trim_heaps_by(trim_heaps);
    let server = umsql::Server::open(settings)
        .map_err(|error| format!("cannot open the database {}: {error}", database.display()))?;
    warn_of_open_modes(&database);

    let address = doors.main.local_addr()?;
    node.describe(format!("port {address}, database {}", whole(&database).display()));
    let patience = Patience { answer: args.limits.answer(), ..args.times.patience() };
    let serving = Serving::start(doors, &node, &server, args.connections, patience)?;
    greet(&node, serving.admin.as_ref(), &database)?;
    let local_path = serving.local.as_ref().map(|(_, name)| name.path());
    access.greet(address, local_path, args.tls.greeting());

    wait_for_the_end(&mut signals, || args.tls.load_again(tls.as_deref()));
    begin_to_stop(signals, args.grace);
    let grace = Duration::from_secs(args.grace);
    serving.stop(grace);
    drop(metrics);
    let report = node.shutdown(Duration::from_secs(1).min(grace));
    drop((serving, server));
    say_stopped(report.cancelled, report.left);
    Ok(())
}

/// What the server listens on, before it serves.
struct Doors {
    main: TcpListener,
    local: Option<(UnixListener, SocketName)>,
    admin: Option<TcpListener>,
}

impl Doors {
    fn open(args: &ServeArgs) -> Fallible<Doors> {
        let main = listening::listen_on(args.listen, "--listen")?;
        let admin = args.admin.map(|address| listening::listen_on(address, "--admin"));
        let admin = admin.transpose()?;
        let local = match args.no_socket {
            true => None,
            false => listening::socket(args.socket_dir.as_deref(), main.local_addr()?.port())?,
        };
        Ok(Doors { main, local, admin })
    }
}

/// The same, served.
struct Serving {
    main: ums::serve::Server,
    local: Option<(ums::serve::Server, SocketName)>,
    admin: Option<ums::serve::Server>,
}

impl Serving {
    fn start(
        doors: Doors,
        node: &Node,
        server: &Arc<umsql::Server>,
        connections: ConnectionArgs,
        patience: Patience,
    ) -> Fallible<Serving> {
        let options = || connections.options();
        let main = listen::serve(node, doors.main, options(), server.clone(), patience)?;
        let local = match doors.local {
            Some((listener, name)) => {
                Some((listen::serve(node, listener, options(), server.clone(), patience)?, name))
            }
            None => None,
        };
        let admin = doors.admin.map(|door| serve_admin(node, door, server, patience));
        Ok(Serving { main, local, admin: admin.transpose()? })
    }

    fn stop(&self, grace: Duration) {
        self.main.stop();
        if let Some((local, _)) = &self.local {
            local.stop_and_wait(grace);
        }
        self.main.stop_and_wait(grace);
        if let Some(admin) = &self.admin {
            admin.stop_and_wait(Duration::from_secs(1));
        }
    }
}

/// Says that the server stops, and lets the next signal end it at once.
fn begin_to_stop(mut signals: Signals, grace: u64) {
    eprintln!(
        "ums: stopping; running requests have {grace} s to finish (signal again to stop at once)"
    );
    std::thread::spawn(move || {
        wait_for_the_end(&mut signals, || ());
        eprintln!("ums: stopped at once");
        std::process::exit(130);
    });
}

/// Takes the signals that a server must not end by.
fn take_signals() -> io::Result<Signals> {
    // With a handler a write beyond the limit of a file's size (RLIMIT_FSIZE) fails, and the client
    // gets an error. Without one the signal would end the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    Signals::new([SIGINT, SIGTERM, SIGHUP])
}

/// Waits for a signal that ends the server. After SIGHUP files are read again.
fn wait_for_the_end(signals: &mut Signals, load_again: impl Fn()) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return;
        }
        load_again();
    }
}

/// The most connections to the administrator's address that have not logged in.
const ADMIN_NEW_MAX: usize = 16;

/// Serves the administrator on a hidden scheduler.
fn serve_admin(
    node: &Node,
    door: TcpListener,
    server: &Arc<umsql::Server>,
    patience: Patience,
) -> Fallible<ums::serve::Server> {
    // These workers always exist and serve only the administrator.
    let ready = HiddenOptions { max_workers: Some(3), ready: 3, ..Default::default() };
    let on = Some(node.hidden("admin", ready)?);
    // Clients that do not log in take no place of the administrator.
    let options =
        ServeOptions { on, max_connections: 1, max_new: ADMIN_NEW_MAX, ..Default::default() };
    Ok(listen::serve(node, door, options, server.clone(), patience)?)
}

fn say_stopped(cancelled: usize, left: usize) {
    if cancelled > 0 {
        eprintln!("ums: cancelled {}", counted(cancelled, "request"));
    }
    if left > 0 {
        eprintln!("ums: left {} that did not end", counted(left, "worker"));
    }
    eprintln!("ums: stopped");
}

fn settings(args: &ServeArgs) -> Fallible<umsql::Settings> {
    let path = match &args.db {
        Some(path) => path.clone(),
        None => default_database()?,
    };
    let mut settings = umsql::Settings::new(path);
    settings.folders = args.file_dir.clone();
    settings.timeouts = args.times.timeouts(args.idle_timeout.map(Duration::from_secs));
    settings.gate_idle = args.times.gate_idle;
    args.limits.apply(&mut settings);
    settings.files = match args.vfs {
        Vfs::Ums => umsql::Files::Ums,
        Vfs::Direct => umsql::Files::UmsDirect,
        Vfs::Host => umsql::Files::Host,
    };
    Ok(settings)
}

/// Returns `ums/ums.db` in the user's data directory, and creates the directory.
fn default_database() -> Fallible<PathBuf> {
    let home = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local/share"));
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    let dir = data.unwrap_or_else(std::env::temp_dir).join("ums");
    std::fs::create_dir_all(&dir).map_err(|error| {
        format!("cannot create {} for the database ({error}): name a file with --db", dir.display())
    })?;
    Ok(dir.join("ums.db"))
}

/// The stack size of SQL workers. Within the engine's limits, SQLite's deepest statement uses some
/// hundred KiB.
const SQL_STACK: usize = 1 << 20;

/// Returns the default maximum number of workers. It is a hard limit: SQL workers mostly wait for
/// each other's locks, so more workers would only wait as well.
fn sql_workers() -> usize {
    let cpus = ums::probe::Cpus::read().count;
    let workers = match cpus {
        0..=4 => 512,
        5..=64 => 512 + (cpus - 4) * 16,
        _ => 512 + (cpus - 4) * 32,
    };
    workers.min(32_767)
}

fn builder(args: &ServeArgs) -> Fallible<Builder> {
    let mut builder =
        Node::builder().io(args.io).queue_limit(args.queue_limit).stack_size(SQL_STACK);
    builder = builder.detect_blocking(args.detect_blocking);
    if let Some(n) = args.schedulers {
        builder = builder.schedulers(n);
    }
    if let Some(seconds) = args.queue_timeout {
        builder = builder.queue_timeout(Duration::from_secs(seconds));
    }
    builder = builder.max_workers(args.max_workers.unwrap_or_else(sql_workers));
    ums::io::set_slow_after(match args.slow_io {
        0 => Duration::MAX,
        ms => Duration::from_millis(ms),
    });
    if args.stall > 0 {
        let stall = Duration::from_millis(args.stall);
        builder = builder.monitor(monitor::Options::default().stall(stall));
    } else {
        builder = builder.warnings(false);
    }
    builder = builder.event_ring(!args.no_ring);
    builder = builder.placement(match args.placement {
        Place::Classic => Placement::Classic,
        Place::Hinted => Placement::Hinted,
        Place::LeastLoaded => Placement::LeastLoaded,
        Place::AlwaysPreferred => Placement::AlwaysPreferred,
    });
    if args.classic {
        builder = builder.classic();
    }
    let kind = match args.workers {
        Workers::Thread => WorkerKind::Thread,
        Workers::Fiber => WorkerKind::Fiber,
        Workers::Context => WorkerKind::OwnContext,
    };
    Ok(workers_of(kind, builder))
}

fn serve_metrics(node: &Node, address: SocketAddr) -> Fallible<MetricsServer> {
    let refused = |error: io::Error| listening::refused(address, "--metrics", &error);
    let server = node.serve_metrics(address).map_err(refused)?;
    eprintln!("ums: metrics on http://{}/metrics", server.local_addr());
    Ok(server)
}

/// Creates the statistics socket. If that fails, prints a message and continues, unless the socket
/// was requested explicitly.
fn serve_stats(args: &ServeArgs, node: &Node) -> Fallible<()> {
    if args.no_stats_socket {
        return Ok(());
    }
    let at = args.stats_socket.clone().map_or(StatsSocket::ByPid, StatsSocket::At);
    match node.serve_stats(at) {
        Ok(path) => {
            eprintln!("ums: statistics on {} (ums top, ums stats, ums stacks)", path.display())
        }
        Err(error) if args.stats_socket.is_none() => {
            eprintln!("ums: no statistics socket: {error}");
        }
        Err(error) => return Err(format!("cannot create the statistics socket: {error}").into()),
    }
    Ok(())
}

fn greet(node: &Node, admin: Option<&ums::serve::Server>, database: &Path) -> Fallible<()> {
    let schedulers = counted(node.scheduler_count(), "scheduler");
    let kind = match node.worker_kind() {
        WorkerKind::Thread => "thread",
        WorkerKind::Fiber => "fiber",
        WorkerKind::OwnContext => "own-context",
    };
    eprintln!("ums: database {}", database.display());
    eprintln!("ums: {schedulers}, {kind} workers; I/O: {}", node.io_text());
    if let Some(admin) = admin {
        eprintln!("ums: administrator on {}", admin.local_addr()?);
    }
    Ok(())
}

/// Makes the files, sockets and folders that the process creates usable for its own user only.
fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Raises the limit of open files as far as the system permits, because each connection has a
/// descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If the system refuses, the limit stays as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_do_not_go_together_are_named_with_what_to_choose() {
        let of = |workers, detects, io| conflict(workers, detects, io).unwrap_or_default();
        for workers in [Workers::Thread, Workers::Context, Workers::Fiber] {
            assert_eq!(of(workers, false, IoChoice::Auto), "");
        }
        assert_eq!(of(Workers::Thread, true, IoChoice::Epoll), "");
        assert_eq!(of(Workers::Context, false, IoChoice::Uring), "");
        let fibers = of(Workers::Fiber, true, IoChoice::Auto);
        assert!(fibers.contains("--workers fiber and --detect-blocking"), "{fibers}");
        let ring = of(Workers::Thread, false, IoChoice::Uring);
        assert!(ring.contains("--io uring and --workers thread"), "{ring}");
        assert!(of(Workers::Context, true, IoChoice::Uring).contains("--detect-blocking"));
    }
}
