//! `ums serve`: SQL over the PostgreSQL wire protocol, on user-mode schedulers.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
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
use crate::modes::warn_of_open_modes;
use crate::raw::{keep_large_blocks_apart, trim_heaps, workers_of};
use crate::times::Times;
use crate::tls::TlsArgs;

/// Options of `ums serve`. Without any it serves a database in the user's data directory on
/// 127.0.0.1:5433.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// Address to listen on. Any but a loopback address needs --allow-remote.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:5433")]
    listen: SocketAddr,

    /// The folder of the Unix-domain socket, which has the name that PostgreSQL's clients look for
    /// (.s.PGSQL.PORT): psql -h DIR. This user and root need no password there, and others cannot
    /// connect. It is faster than a port. Default: ums in the runtime directory, or ums-UID in the
    /// temporary one.
    #[arg(long, value_name = "DIR")]
    socket_dir: Option<PathBuf>,

    /// Do not create that socket.
    #[arg(long, conflicts_with = "socket_dir")]
    no_socket: bool,

    /// The database file; created if it does not exist. Default: ums/ums.db in the user's data
    /// directory.
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,

    /// Let clients read and write the files in this folder and the folders in it, by ATTACH and
    /// BACKUP; may be given several times. Links that lead out of it are not followed. Default:
    /// clients reach no file but the database.
    #[arg(long, value_name = "DIR")]
    file_dir: Vec<PathBuf>,

    /// The file system under the database: ums (a wait for the disk parks the worker, and commits
    /// share syncs), direct (the same, read past the kernel's page cache), or host (SQLite's own,
    /// which blocks the thread), for comparison.
    #[arg(long, value_enum, default_value_t = Vfs::Ums)]
    vfs: Vfs,

    /// What workers are made of: kernel threads, fibers (faster switches), or threads that are
    /// switched to like fibers.
    #[arg(long, value_enum, default_value_t = Workers::Thread)]
    workers: Workers,

    /// Number of schedulers. Default: one for each processor that this process may use.
    #[arg(long, value_name = "N")]
    schedulers: Option<usize>,

    /// Maximum number of workers in all; further requests queue. Default: 512 for up to four
    /// processors.
    #[arg(long, value_name = "N")]
    max_workers: Option<usize>,

    /// Detect workers that block in system calls and page faults, and let other workers run
    /// meanwhile. Not with fibers. Pins each scheduler's threads to one processor.
    #[arg(long)]
    detect_blocking: bool,

    /// How users and their requests are distributed over schedulers.
    #[arg(long, value_enum, default_value_t = Place::Hinted)]
    placement: Place,

    /// SQL Server 2000's behaviour as a whole: classic placement, first in first out, 255 workers.
    #[arg(long, conflicts_with_all = ["placement", "max_workers"])]
    classic: bool,

    /// The I/O back end: auto, uring, epoll or sync. UMS_IO in the environment overrides it.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    io: IoChoice,

    /// Maximum number of requests that wait for a worker on one scheduler; further ones are refused
    /// with an error.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    queue_limit: usize,

    /// Refuse requests that have waited this many seconds for a worker. Default: never.
    #[arg(long, value_name = "SECONDS")]
    queue_timeout: Option<u64>,

    /// Close connections that send nothing for this many seconds. Default: never.
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,

    #[command(flatten)]
    times: Times,

    #[command(flatten)]
    connections: ConnectionArgs,

    #[command(flatten)]
    limits: LimitArgs,

    /// Also listen here for one administrator connection, which has workers of its own and is
    /// served even if all others are stuck. Loopback only.
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<SocketAddr>,

    /// Serve statistics over HTTP: /metrics for Prometheus, and /json. Loopback only, because there
    /// is no authentication.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// The socket that ums stats and ums top use, for this user only. Default: PID.sock in ums in
    /// the runtime directory, or in ums-UID in the temporary one.
    #[arg(long, value_name = "FILE")]
    stats_socket: Option<PathBuf>,

    /// Do not create that socket.
    #[arg(long, conflicts_with = "stats_socket")]
    no_stats_socket: bool,

    /// Report workers that do not yield for this many milliseconds, and anything else that is
    /// stuck, on stderr. 0: no monitor and no reports.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    stall: u64,

    /// Report a wait for a file that takes longer than this many milliseconds (0: never).
    #[arg(long, value_name = "MS", default_value_t = 15_000)]
    slow_io: u64,

    /// Do not record the schedulers' last events. Then there is nothing to trace, and a crash
    /// leaves no last events.
    #[arg(long)]
    no_ring: bool,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
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
    // Before anything is made, such as the folder of the database and its password.
    let tls = args.tls.load()?;
    let mut settings = settings(args)?;
    settings.tls = tls.clone();
    settings.tls_only = args.tls.only();
    let database = settings.database.clone();
    let access = args.access.access(args.listen, &database)?;
    settings.accounts = access.accounts.clone();
    settings.local_users = vec![own_user(), 0];
    let node = builder(args)?.build()?;
    node.print_stacks_on_sigusr2()?;
    keep_large_blocks_apart();
    umsql::trim_heaps_by(trim_heaps);
    let server = umsql::Server::open(settings)
        .map_err(|error| format!("cannot open the database {}: {error}", database.display()))?;
    let patience = Patience { answer: args.limits.answer(), ..args.times.patience() };
    warn_of_open_modes(&database);

    let listener = listen_on(args.listen)?;
    let options = || args.connections.options();
    let main = listen::serve(&node, listener, options(), server.clone(), patience)?;
    let local = match socket(args, main.local_addr()?.port())? {
        Some((listener, name)) => {
            Some((listen::serve(&node, listener, options(), server.clone(), patience)?, name))
        }
        None => None,
    };
    let admin = match args.admin {
        Some(address) => Some(serve_admin(&node, address, &server, patience)?),
        None => None,
    };
    let metrics = args.metrics.map(|address| serve_metrics(&node, address)).transpose()?;
    serve_stats(args, &node)?;
    greet(&node, admin.as_ref(), &database)?;
    let local_path = local.as_ref().map(|(_, name)| name.0.as_path());
    access.greet(main.local_addr()?, local_path, args.tls.greeting());

    wait_for_the_end(&mut signals, || args.tls.load_again(tls.as_deref()));
    begin_to_stop(signals, args.grace);
    let grace = Duration::from_secs(args.grace);
    main.stop();
    if let Some((local, _)) = &local {
        local.stop_and_wait(grace);
    }
    main.stop_and_wait(grace);
    if let Some(admin) = admin {
        admin.stop_and_wait(Duration::from_secs(1));
    }
    drop(metrics);
    let report = node.shutdown(Duration::from_secs(1).min(grace));
    drop((main, local, server));
    say_stopped(report.cancelled, report.left);
    Ok(())
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
    address: SocketAddr,
    server: &Arc<umsql::Server>,
    patience: Patience,
) -> Fallible<ums::serve::Server> {
    // These workers always exist and serve only the administrator.
    let ready = HiddenOptions { max_workers: Some(3), ready: 3, ..Default::default() };
    let on = Some(node.hidden("admin", ready)?);
    // Clients that do not log in take no place of the administrator.
    let options =
        ServeOptions { on, max_connections: 1, max_new: ADMIN_NEW_MAX, ..Default::default() };
    Ok(listen::serve(node, listen_on(address)?, options, server.clone(), patience)?)
}

fn say_stopped(cancelled: usize, left: usize) {
    if cancelled > 0 {
        eprintln!("ums: {cancelled} requests were cancelled");
    }
    if left > 0 {
        eprintln!("ums: {left} workers did not end and were left");
    }
    eprintln!("ums: stopped");
}

fn settings(args: &ServeArgs) -> Fallible<umsql::Settings> {
    if args.admin.is_some_and(|admin| !admin.ip().is_loopback()) {
        return Err("the administrator's address must be a loopback address".into());
    }
    if args.metrics.is_some_and(|metrics| !metrics.ip().is_loopback()) {
        return Err("the metrics' address must be a loopback address".into());
    }
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

fn listen_on(address: SocketAddr) -> Fallible<TcpListener> {
    TcpListener::bind(address)
        .map_err(|error| format!("cannot listen on {address}: {error}").into())
}

fn serve_metrics(node: &Node, address: SocketAddr) -> Fallible<MetricsServer> {
    let server = node
        .serve_metrics(address)
        .map_err(|error| format!("cannot serve metrics on {address}: {error}"))?;
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

/// The path of a Unix-domain socket. Dropping this value removes the socket's file.
struct SocketName(PathBuf);

impl SocketName {
    /// Listens in `dir`, at the path that PostgreSQL's clients derive from the port. A socket file
    /// that an earlier server left behind is replaced, but not one that another server listens on.
    fn listen(dir: &Path, port: u16) -> Fallible<(UnixListener, SocketName)> {
        let path = dir.join(format!(".s.PGSQL.{port}"));
        let left_behind = |error: &io::Error| {
            error.kind() == io::ErrorKind::AddrInUse
                && UnixStream::connect(&path)
                    .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
        };
        let bound = match UnixListener::bind(&path) {
            Err(error) if left_behind(&error) => {
                std::fs::remove_file(&path).and_then(|()| UnixListener::bind(&path))
            }
            bound => bound,
        };
        match bound {
            Ok(listener) => Ok((listener, SocketName(path))),
            Err(error) => Err(format!("cannot listen on {}: {error}", path.display()).into()),
        }
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on the Unix-domain socket. If that fails in the default folder, prints a message and
/// continues.
fn socket(args: &ServeArgs, port: u16) -> Fallible<Option<(UnixListener, SocketName)>> {
    if args.no_socket {
        return Ok(None);
    }
    if let Some(dir) = &args.socket_dir {
        return SocketName::listen(dir, port).map(Some);
    }
    let own = StatsSocket::own_folder().map_err(Into::into);
    match own.and_then(|dir| SocketName::listen(&dir, port)) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => {
            eprintln!("ums: no Unix-domain socket: {error}");
            Ok(None)
        }
    }
}

fn greet(node: &Node, admin: Option<&ums::serve::Server>, database: &Path) -> Fallible<()> {
    let schedulers = node.scheduler_count();
    let kind = match node.worker_kind() {
        WorkerKind::Thread => "thread",
        WorkerKind::Fiber => "fiber",
        WorkerKind::OwnContext => "own-context",
    };
    eprintln!("ums: database {}", database.display());
    eprintln!("ums: {schedulers} schedulers, {kind} workers; I/O: {}", node.io_text());
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
