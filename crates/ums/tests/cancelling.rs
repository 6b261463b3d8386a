//! Cancellation of requests. Cancelling a request ends each of its waits except waits for locks, in
//! every kind of worker. A cancelled wait acquires nothing and leaves no waiter behind, and no
//! value is lost.
//!
//! The rule is in the documentation of `ums::sync`. Waits for I/O are tested in `net` and `fs`,
//! timers in `timers`.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{both_kinds, eventually, ms, on, spin, start};
use ums::io::Request;
use ums::stats::WorkerState;
use ums::sync::channel::{RecvError, SendError, TryRecvError, TrySendError};
use ums::sync::channel::{bounded, oneshot, rendezvous, unbounded};
use ums::sync::{Barrier, Condvar, Event, Latch, Mutex, OnceCell, RwLock, Select, Semaphore};
use ums::task::{JoinError, JoinHandle};
use ums::user::UserLock;
use ums::{Node, WaitError, WaitReason};

const CANCELLED: WaitError = WaitError::Cancelled;

/// Returns how many workers wait for this reason.
fn waiting(node: &Node, reason: WaitReason) -> usize {
    let workers = node.snapshot().workers;
    workers.iter().filter(|w| w.state == WorkerState::Waiting && w.reason == Some(reason)).count()
}

/// Starts a task, cancels it once it waits for this reason, and returns the task's result.
fn cancelled<T: Send + 'static>(
    node: &Node,
    reason: WaitReason,
    wait: impl FnOnce() -> T + Send + 'static,
) -> T {
    let task = start(node, node.scheduler_count() - 1, wait);
    eventually("it waits", || waiting(node, reason) == 1);
    task.cancel();
    task.join().expect("a cancelled task runs to its end")
}

/// Like [`cancelled`], for a wait that fails with a [`WaitError`]: the task repeats the wait, which
/// must fail in the same way.
fn fails<R: Send + Sync + 'static>(
    node: &Node,
    reason: WaitReason,
    resource: &Arc<R>,
    wait: impl Fn(&R) -> Result<(), WaitError> + Send + 'static,
) {
    let resource = resource.clone();
    let both = cancelled(node, reason, move || [wait(&resource), wait(&resource)]);
    assert_eq!(both, [Err(CANCELLED); 2], "it lasts until the request ends");
}

#[test]
fn a_shield_in_a_completion_routine_is_not_that_of_the_worker_in_whose_turn_it_runs() {
    both_kinds(|node, _, _| {
        let (give, given) = std::sync::mpsc::channel::<JoinHandle<Result<bool, WaitError>>>();
        let (tell, told) = std::sync::mpsc::channel();
        let ready = Arc::new(AtomicBool::new(false));
        let begins = ready.clone();
        let task = start(node, 0, move || {
            while !begins.load(Ordering::SeqCst) {
                ums::yield_now();
            }
            let routine = move |_| {
                let task = given.try_recv().expect("it was given");
                ums::shield(|| task.cancel());
                tell.send((task, ums::is_cancelled())).unwrap();
            };
            Request::sync(tempfile::tempfile().unwrap(), false, routine).submit();
            Event::manual(false).wait().map(|()| true)
        });
        give.send(task).unwrap();
        ready.store(true, Ordering::SeqCst);
        let (mut task, seen) = told.recv().unwrap();
        assert!(!seen, "the routine belongs to no request");
        let ended = task.join_for(Duration::from_secs(20));
        assert_eq!(ended.expect("the cancellation was not lost"), Err(CANCELLED));
    });
}

#[test]
fn a_cancelled_wait_for_an_event_or_a_latch_takes_no_signal() {
    both_kinds(|node, _, _| {
        let auto = Arc::new(Event::auto(false));
        fails(node, WaitReason::EVENT, &auto, Event::wait);
        auto.set();
        assert!(auto.is_set(), "no waiter was left to take it");
        let latch = Arc::new(Latch::new(1));
        fails(node, WaitReason::EVENT, &latch, Latch::wait);
        latch.count_down();
        assert_eq!(latch.wait(), Ok(()));
    });
}

#[test]
fn a_cancelled_caller_does_not_count_in_a_barrier() {
    both_kinds(|node, _, _| {
        let barrier = Arc::new(Barrier::new(2));
        fails(node, WaitReason::BARRIER, &barrier, |b| b.wait().map(drop));
        assert_eq!(barrier.wait_for(ms(1)).err(), Some(WaitError::TimedOut));
    });
}

#[test]
fn a_cancelled_acquisition_holds_no_permit_and_keeps_no_other_waiting() {
    both_kinds(|node, _, _| {
        let seats = Arc::new(Semaphore::new(0));
        fails(node, WaitReason::SEMAPHORE, &seats, |s| s.acquire().map(drop));
        seats.add_permits(2);
        assert_eq!(seats.available(), 2);
        // The waiter at the front needs more permits than there are. When it is cancelled, the
        // waiter behind it gets its permit.
        let (large, small) = (seats.clone(), seats.clone());
        let large = start(node, 0, move || large.acquire_many(3).map(drop));
        eventually("it waits", || waiting(node, WaitReason::SEMAPHORE) == 1);
        let small = start(node, node.scheduler_count() - 1, move || small.acquire().map(drop));
        eventually("both wait", || waiting(node, WaitReason::SEMAPHORE) == 2);
        large.cancel();
        assert_eq!(large.join().unwrap(), Err(CANCELLED));
        assert_eq!(small.join().unwrap(), Ok(()));
        assert!(seats.try_acquire_many(2).is_some());
    });
}

#[test]
fn a_cancelled_wait_for_a_condition_has_the_mutex_and_takes_no_notification() {
    both_kinds(|node, _, _| {
        let pair = Arc::new((Mutex::new(0), Condvar::new()));
        let wait = |(mutex, changed): &(Mutex<i32>, Condvar)| {
            let mut guard = mutex.lock();
            let waited = changed.wait(&mut guard);
            assert!(mutex.try_lock().is_none(), "the mutex is locked again");
            drop(guard);
            waited
        };
        fails(node, WaitReason::CONDVAR, &pair, wait);
        let wait = |(mutex, changed): &(Mutex<i32>, Condvar)| {
            changed.wait_while(&mut mutex.lock(), |n| *n == 0)
        };
        fails(node, WaitReason::CONDVAR, &pair, wait);
        assert!(pair.0.try_lock().is_some());
        // The notification goes to the remaining waiter.
        let theirs = pair.clone();
        let stays = start(node, 0, move || wait(&theirs));
        eventually("it waits", || waiting(node, WaitReason::CONDVAR) == 1);
        *pair.0.lock() = 1;
        pair.1.notify_one();
        assert_eq!(stays.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_cancelled_receiver_or_sender_leaves_its_value_with_its_owner() {
    both_kinds(|node, _, _| {
        let (to, from) = rendezvous::<i32>();
        let (to, from) = (Arc::new(to), Arc::new(from));
        let receiver = from.clone();
        let both = move || [receiver.recv(), receiver.recv()];
        let received = cancelled(node, WaitReason::CHANNEL_RECEIVE, both);
        assert_eq!(received, [Err(RecvError::Wait(CANCELLED)); 2]);
        assert_eq!(to.try_send(1), Err(TrySendError::Full(1)), "no receiver is left");
        let receiver = from.clone();
        let all = cancelled(node, WaitReason::CHANNEL_RECEIVE, move || receiver.iter().count());
        assert_eq!(all, 0, "an iterator ends");
        let sender = to.clone();
        let sent = cancelled(node, WaitReason::CHANNEL_SEND, move || sender.send(2));
        assert_eq!(sent, Err(SendError::Wait(2, CANCELLED)));
        assert_eq!(from.try_recv(), Err(TryRecvError::Empty), "no sender is left");
        let (sender, receiver) = oneshot();
        let receiver = Arc::new(receiver);
        let theirs = receiver.clone();
        let received = cancelled(node, WaitReason::CHANNEL_RECEIVE, move || theirs.recv());
        assert_eq!(received, Err(RecvError::Wait(CANCELLED)));
        sender.send(3).unwrap();
        assert_eq!(receiver.recv(), Ok(3));
    });
}

#[test]
fn a_cancelled_select_runs_no_arm_and_takes_no_value() {
    both_kinds(|node, _, _| {
        let ((to, from), (other_to, other)) = (rendezvous::<i32>(), rendezvous::<i32>());
        let selected = cancelled(node, WaitReason::SELECT, move || {
            let arm = |_| panic!("it has no value");
            let selected = Select::new().on(&from, arm).on(&other, arm).wait();
            (selected, from, other)
        });
        assert_eq!(selected.0.err(), Some(CANCELLED));
        assert_eq!(to.try_send(1), Err(TrySendError::Full(1)));
        assert_eq!(other_to.try_send(1), Err(TrySendError::Full(1)));
    });
}

#[test]
fn a_cancelled_join_gives_the_handle_back_and_the_result_stays() {
    both_kinds(|node, _, _| {
        let go = Arc::new(Event::manual(false));
        let theirs = go.clone();
        let child = start(node, 0, move || theirs.wait().map(|()| 7));
        let joined = cancelled(node, WaitReason::JOIN, move || child.join());
        let Err(JoinError::Wait(child, CANCELLED)) = joined else { panic!("{joined:?}") };
        assert!(!child.is_finished());
        let theirs = go.clone();
        let joined = cancelled(node, WaitReason::JOIN, move || {
            let borrowed = AtomicUsize::new(0);
            let begun = Event::manual(false);
            let joined = ums::scope(|scope| {
                let task = scope.spawn(|| {
                    begun.set();
                    let waited = theirs.wait_for(common::PATIENCE);
                    borrowed.store(1, Ordering::Relaxed);
                    waited
                });
                // A task that is cancelled before it has begun would never run.
                begun.wait().expect("the request is not cancelled yet");
                let Err(JoinError::Wait(task, error)) = task.join() else {
                    panic!("it is not set")
                };
                theirs.set();
                (task.is_finished(), error)
            });
            assert_eq!(borrowed.into_inner(), 1, "the scope's end waits whatever happens");
            joined.1
        });
        assert_eq!(joined, CANCELLED);
        assert_eq!(child.join().unwrap(), Ok(7));
    });
}

#[test]
fn locks_and_calls_that_run_a_closure_ignore_cancellation() {
    both_kinds(|node, _, n| {
        type Locks = (Mutex<i32>, RwLock<i32>, OnceCell<i32>);
        let locks: Arc<Locks> = Arc::new((Mutex::new(0), RwLock::new(0), OnceCell::new()));
        type Wait = fn(&Locks);
        let waits: [(WaitReason, Wait); 4] = [
            (WaitReason::MUTEX, |locks| *locks.0.lock() += 1),
            (WaitReason::RWLOCK_SHARED, |locks| assert_eq!(*locks.1.read(), 0)),
            (WaitReason::RWLOCK_EXCLUSIVE, |locks| *locks.1.write() = 1),
            (WaitReason::ONCE, |locks| assert_eq!(*locks.2.get_or_init(|| 0), 7)),
        ];
        let go = Arc::new(Event::manual(false));
        let (theirs, open) = (locks.clone(), go.clone());
        let maker = start(node, 0, move || *theirs.2.get_or_init(|| open.wait().map_or(0, |()| 7)));
        eventually("it is being made", || waiting(node, WaitReason::EVENT) == 1);
        let held = (locks.0.lock(), locks.1.write());
        let tasks = waits.map(|(reason, wait)| {
            let theirs = locks.clone();
            let task = start(node, n - 1, move || wait(&theirs));
            eventually("it waits", || waiting(node, reason) == 1);
            task.cancel();
            task
        });
        std::thread::sleep(ms(5));
        assert!(!tasks.iter().any(|task| task.is_finished()), "they still wait");
        drop(held);
        go.set();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!((maker.join().unwrap(), *locks.0.lock()), (7, 1));
        // `Node::run` and `join_uncancellable` wait to the end although the request is cancelled.
        let (open, theirs) = (Arc::new(Event::manual(false)), go.clone());
        let inner = open.clone();
        let task = start(node, n - 1, move || {
            let child = ums::spawn(move || inner.wait().is_ok());
            let joined = child.join_uncancellable();
            (
                joined.unwrap(),
                ums::is_cancelled(),
                Node::current().unwrap().run(move || theirs.wait()),
            )
        });
        eventually("it joins", || waiting(node, WaitReason::JOIN) == 1);
        task.cancel();
        open.set();
        assert_eq!(task.join().unwrap(), (true, true, Ok(())));
    });
}

#[test]
fn a_cancelled_request_still_gets_what_it_need_not_wait_for() {
    both_kinds(|node, _, n| {
        let told = on(node, n - 1, || {
            let task = ums::spawn(|| {
                eventually("it is cancelled", ums::is_cancelled);
                let (sender, receiver) = bounded(1);
                let sent = sender.send(1).is_ok() && receiver.recv() == Ok(1);
                let seats = Semaphore::new(1);
                let child = ums::spawn(|| ());
                eventually("the child ends", || child.is_finished());
                let waits = Event::manual(true).wait().is_ok() && Latch::new(0).wait().is_ok();
                let alone = Barrier::new(1).wait().is_ok();
                (sent, seats.acquire().is_ok(), waits, alone, child.join().is_ok())
            });
            ums::yield_now();
            task.cancel();
            match task.join() {
                // The task never ran: another scheduler stole it and started it after the
                // cancellation.
                Err(JoinError::NeverRan) => (true, true, true, true, true),
                told => told.unwrap(),
            }
        });
        assert_eq!(told, (true, true, true, true, true));
    });
}

#[test]
fn a_user_lock_and_a_parked_wait_end_with_the_request() {
    both_kinds(|node, _, _| {
        let (lock, owner, user) = (Arc::new(UserLock::new()), node.user(), node.user());
        lock.acquire(owner.id(), None).unwrap();
        let id = user.id();
        fails(node, WaitReason::LCK_M_X, &lock, move |lock| lock.acquire(id, None));
        assert_eq!(lock.waiters(), 0);
        lock.release(owner.id());
        assert_eq!(lock.owner(), None);
        let list = Arc::new(std::sync::Mutex::new(Vec::new()));
        fails(node, WaitReason::OTHER, &list, |list| {
            ums::sync::Wait::new(WaitReason::OTHER).park(|me| list.lock().unwrap().push(me))
        });
        assert!(!list.lock().unwrap().iter().any(|sleeper| sleeper.wake()));
    });
}

/// Cancels a task at about the time at which `give` gives it what it waits for. Returns the task's
/// result.
fn raced<T: Send + 'static>(
    node: &Node,
    round: u64,
    take: impl FnOnce() -> T + Send + 'static,
    give: impl FnOnce() + Send + 'static,
) -> T {
    let begun = Arc::new(AtomicBool::new(false));
    let tell = begun.clone();
    let task = start(node, 0, move || {
        tell.store(true, Ordering::Relaxed);
        take()
    });
    eventually("it has begun", || begun.load(Ordering::Relaxed));
    let giver = start(node, node.scheduler_count() - 1, move || {
        spin(std::time::Duration::from_micros(round % 40));
        give();
    });
    spin(std::time::Duration::from_micros(round % 50));
    task.cancel();
    giver.join().unwrap();
    task.join().unwrap()
}

#[test]
fn grants_race_with_cancellations_and_nothing_is_lost() {
    const ROUNDS: u64 = 60;
    both_kinds(|node, _, _| {
        let (seats, signal) = (Arc::new(Semaphore::new(0)), Arc::new(Event::auto(false)));
        for round in 0..ROUNDS {
            let (sender, receiver) = unbounded();
            let receiver = Arc::new(receiver);
            let theirs = receiver.clone();
            let got = raced(node, round, move || theirs.recv(), move || sender.send(7).unwrap());
            assert_eq!(got.is_ok(), receiver.try_recv().is_err(), "it is with one of the two");

            let (sender, receiver) = rendezvous();
            let taken = Arc::new(AtomicUsize::new(0));
            let theirs = taken.clone();
            let take = move || theirs.store(receiver.try_recv().unwrap_or(0), Ordering::Relaxed);
            let sent = raced(node, round, move || sender.send(7), take);
            assert_eq!(sent.is_ok(), taken.load(Ordering::Relaxed) == 7, "{sent:?}");

            let (theirs, giver) = (seats.clone(), seats.clone());
            let take = move || theirs.acquire().map(|permit| permit.forget());
            let got = raced(node, round, take, move || giver.add_permits(1));
            assert_eq!(got.is_ok(), seats.try_acquire().map(|permit| permit.forget()).is_none());

            let (theirs, giver) = (signal.clone(), signal.clone());
            let got = raced(node, round, move || theirs.wait(), move || giver.set());
            assert_eq!(got.is_ok(), !signal.reset());
        }
    });
}
