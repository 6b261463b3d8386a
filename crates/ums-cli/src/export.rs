//! `ums export`: writes a database as SQL text, also one that `ums serve` refuses because its
//! schema is damaged.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::words::counted;

/// Options of `ums export`.
#[derive(clap::Args)]
pub struct ExportArgs {
    /// The database file. No server may have it open.
    #[arg(long, value_name = "FILE")]
    db: PathBuf,

    /// Where to write the text: a new file, for this user only. Default: the standard output.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

/// Runs the command. Its exit status is 2 if something could not be read and was left out.
pub fn run(args: &ExportArgs) -> ExitCode {
    match export(args) {
        Ok(exported) => {
            for (name, reason) in &exported.left_out {
                eprintln!("ums export: left out: {name}: {reason}");
            }
            let rows = counted(exported.rows as usize, "row");
            eprintln!("ums export: {}, {rows}", counted(exported.tables, "table"));
            ExitCode::from(if exported.left_out.is_empty() { 0 } else { 2 })
        }
        Err(error) => {
            eprintln!("ums export: {}: {error}", args.db.display());
            ExitCode::FAILURE
        }
    }
}

fn export(args: &ExportArgs) -> Result<umsql::Exported, Box<dyn std::error::Error>> {
    if !args.db.exists() {
        return Err("there is no such file".into());
    }
    let to: Box<dyn Write> = match &args.to {
        Some(path) => {
            Box::new(OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?)
        }
        None => Box::new(io::stdout().lock()),
    };
    umsql::export(&args.db, &mut BufWriter::new(to))
}
