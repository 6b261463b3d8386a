//! The statistics that a client can query: the views, the reset of waits, and the monitor's
//! reports.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postgres::Client;
use ums::Node;
use ums::monitor::{Condition, Options, Report};

mod common;
use common::{TestServer, rows};

fn number(client: &mut Client, sql: &str) -> i64 {
    rows(client, sql)[0][0].as_deref().unwrap().parse().unwrap()
}

#[test]
fn every_view_can_be_selected_from() {
    let server = TestServer::start();
    let mut client = server.client();
    for view in ums::stats::View::ALL {
        let name = view.empty().name;
        rows(&mut client, &format!("select * from {name}"));
        let columns = view.empty().columns.len();
        let sql = format!("select count(*) from pragma_table_info('{name}')");
        assert_eq!(number(&mut client, &sql), columns as i64, "{name}");
    }
    assert_eq!(number(&mut client, "select count(*) from ums_schedulers where is_online = 1"), 2);
    // The query itself is a running request, and its connection is a user.
    assert!(
        number(&mut client, "select count(*) from ums_requests where task_state = 'RUNNING'") > 0
    );
    assert_eq!(number(&mut client, "select count(*) from ums_users where is_busy = 1"), 1);
}

#[test]
fn the_catalogue_outlives_a_transaction_that_is_rolled_back() {
    let server = TestServer::start();
    let mut client = server.client();
    let classes = "select count(*) from pg_class";
    for sql in ["begin", classes, "rollback", classes, "begin", classes, classes, "rollback"] {
        rows(&mut client, sql);
    }
    rows(&mut client, &format!("begin; {classes}; rollback"));
    // The pooled connection serves the next client.
    drop(client);
    rows(&mut server.client(), classes);
}

#[test]
fn waits_are_counted_by_user_and_can_be_cleared() {
    let server = TestServer::start();
    let mut client = server.client();
    rows(&mut client, "select pg_sleep(0.01)");
    rows(&mut client, "select pg_sleep(0.01)");
    let counted = "select completed_waits from ums_wait_stats where wait_type = 'WAITFOR'";
    assert_eq!(number(&mut client, counted), 2);
    let mine = "select completed_waits from ums_user_waits where wait_type = 'WAITFOR'";
    assert_eq!(number(&mut client, mine), 2);
    rows(&mut client, "DBCC SQLPERF(waitstats, CLEAR)");
    assert!(rows(&mut client, counted).is_empty());
    assert!(rows(&mut client, mine).is_empty());
}

#[test]
fn a_statement_that_does_not_yield_is_reported_with_its_function_and_its_user_b31() {
    let told: Arc<Mutex<Vec<Report>>> = Arc::default();
    let log = told.clone();
    let options = Options::default()
        .stall(Duration::from_millis(100))
        .starved(Duration::from_secs(3600))
        .stderr(false)
        .on_report(move |report| log.lock().unwrap().push(report.clone()));
    let node = Node::builder().schedulers(2).max_workers(32).monitor(options).build().unwrap();
    let server = TestServer::on(node, |_| ());
    let mut client = server.client();
    let me = number(&mut client, "select user_id from ums_users where is_busy = 1");
    // On a busy computer the statement may end before it has used enough processor time to be
    // reported, or before the monitor has read its functions. So it is run again. If the statement
    // gets hardly any processor time, the monitor reports no stall, and there is nothing to check.
    let began = Instant::now();
    let named = || told.lock().unwrap().iter().any(|report| !report.backtrace.is_empty());
    while !named() && began.elapsed() < Duration::from_secs(60) {
        rows(&mut client, "select busy_loop(600)");
    }
    // A report takes some time, and further statements may have begun meanwhile. Each stall is
    // reported once.
    let stalls = "select reports_count from ums_monitor where condition = 'STALL'";
    let all_told = || {
        let counted = number(&mut client, stalls);
        let told = told.lock().unwrap().clone();
        (counted == told.len() as i64).then_some(told)
    };
    let reports = std::iter::repeat_with(all_told).flatten().next().unwrap();
    let requests: HashSet<_> = reports.iter().map(|report| report.request).collect();
    assert_eq!(requests.len(), reports.len(), "{reports:#?}");
    for report in reports {
        assert_eq!((report.condition, report.user as i64), (Condition::Stall, me), "{report}");
        let mut frames = report.backtrace.iter();
        let is_named = frames.any(|frame| frame.name.contains("functions::busy_loop"));
        assert!(is_named || report.backtrace.is_empty(), "{report}");
    }
}
