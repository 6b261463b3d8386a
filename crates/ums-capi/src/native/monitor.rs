//! The monitor's reports, as C sees them.

use std::ffi::{CString, c_char};

use ums::monitor::Report;

use crate::caller::Argument;

/// Called with each report, on the monitor's thread, which looks at no scheduler until the function
/// returns. The report and its texts are valid until then.
pub type ums_on_report = Option<extern "C-unwind" fn(arg: Argument, report: &ums_report)>;

/// A finding of the monitor.
#[repr(C)]
#[derive(Debug)]
pub struct ums_report {
    /// sizeof(ums_report) of this version of the library.
    pub size: usize,
    /// What is wrong: "STALL", "NON-YIELDING", "SLOW ROUTINE", "NO WORKERS", "NOT PICKED UP",
    /// "ALL STUCK", "SLOW SUBMISSION", "SLOW I/O" or "DEADLOCK".
    pub condition: *const c_char,
    /// The report as it is written to stderr, of several lines.
    pub text: *const c_char,
    /// How long the condition has lasted.
    pub lasted_ns: u64,
    /// The number of the scheduler.
    pub scheduler: usize,
    /// The number of the work request that the worker carries out; 0 for none.
    pub request: u64,
    /// The number of the request's user; 0 for none.
    pub user: u64,
}

/// Calls the program's function with this report.
pub(super) fn tell(
    report: &Report,
    function: extern "C-unwind" fn(Argument, &ums_report),
    arg: Argument,
) {
    let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
    let (condition, words) = (text(report.condition.name()), text(&report.to_string()));
    function(
        arg,
        &ums_report {
            size: size_of::<ums_report>(),
            condition: condition.as_ptr(),
            text: words.as_ptr(),
            lasted_ns: u64::try_from(report.lasted.as_nanos()).unwrap_or(u64::MAX),
            scheduler: report.scheduler,
            request: report.request,
            user: report.user,
        },
    );
}
