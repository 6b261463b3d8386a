//! Stories of scopes, groups, time limits and shields, cancelled at random moments. Nothing is
//! lost, whatever ends the waits: each permit comes back, each value arrives once or comes back to
//! its sender, and each task that began has ended when its scope has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::sim::below;
use ums::sync::Semaphore;
use ums::sync::channel::{Receiver, RecvError, SendError, Sender, bounded};
use ums::task::{Interval, JoinError};
use ums::{WaitError, shield, task_group, with_timeout};

use super::{STALLS, check, end, node_with};

/// What all tasks of a story use, and what it adds up to.
struct World {
    permits: Semaphore,
    sender: Sender<u64>,
    receiver: Receiver<u64>,
    sent: AtomicU64,
    received: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
}

const PERMITS: usize = 2;

impl World {
    /// Waits for something. If the caller is `deaf`, nothing but its own time limit ends that.
    fn wait(&self, deaf: bool) -> Result<(), WaitError> {
        let ended = match below(4) {
            0 => ums::sleep(Duration::from_micros(below(300))),
            1 => {
                let permit = with_timeout(micros(200), || self.permits.acquire());
                let slept = permit.as_ref().map_or(Ok(()), |_| ums::sleep(micros(50)));
                permit.map(drop).and(slept)
            }
            2 => {
                let value = 1 + below(100);
                match self.sender.send_for(value, micros(200)) {
                    Ok(()) => _ = self.sent.fetch_add(value, Ordering::Relaxed),
                    Err(SendError::Wait(back, _)) => assert_eq!(back, value),
                    Err(error) => panic!("{error}"),
                }
                ums::checkpoint()
            }
            _ => match self.receiver.recv_for(micros(200)) {
                Ok(value) => {
                    self.received.fetch_add(value, Ordering::Relaxed);
                    Ok(())
                }
                Err(RecvError::Wait(error)) => Err(error),
                Err(error) => panic!("{error}"),
            },
        };
        assert!(!(deaf && ended == Err(WaitError::Cancelled)), "a shielded wait heard it");
        ended
    }

    /// Waits, and opens scopes and groups whose tasks do the same.
    fn work(&self, depth: u32, deaf: bool) -> Result<(), WaitError> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let result = self.some_work(depth, deaf);
        self.ended.fetch_add(1, Ordering::Relaxed);
        result
    }

    fn some_work(&self, depth: u32, deaf: bool) -> Result<(), WaitError> {
        for _ in 0..1 + below(3) {
            match if depth == 0 { 9 } else { below(10) } {
                0..2 => self.scope(depth),
                2..4 => drop(self.group(depth)),
                4 => self.limited(),
                5 => shield(|| self.wait(true).map_or((), drop)),
                _ => drop(self.wait(deaf)),
            }
        }
        self.wait(deaf)
    }

    fn scope(&self, depth: u32) {
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        ums::scope(|s| {
            let tasks: Vec<_> = (0..1 + below(3))
                .map(|_| {
                    s.spawn(|| {
                        begun.fetch_add(1, Ordering::Relaxed);
                        let _ = self.work(depth - 1, false);
                        ended.fetch_add(1, Ordering::Relaxed);
                    })
                })
                .collect();
            if below(4) == 0 {
                s.cancel();
            }
            if below(2) == 0 {
                for task in tasks {
                    match task.join() {
                        Ok(()) | Err(JoinError::NeverRan | JoinError::Wait(..)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        assert_eq!(begun.into_inner(), ended.into_inner(), "the scope has ended before its tasks");
    }

    /// Returns how many results the group gave.
    fn group(&self, depth: u32) -> Result<u64, WaitError> {
        let (good, spawned) = (AtomicU64::new(0), 1 + below(4));
        let given = task_group(|group| {
            if below(2) == 0 {
                group.max_running(1 + below(2) as usize);
            }
            for _ in 0..spawned {
                group.spawn(|| {
                    let result = self.work(depth - 1, false);
                    good.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
                    result
                });
            }
            let mut given = 0;
            if below(3) > 0 {
                while group.next()?.is_some() {
                    given += 1;
                }
                assert_eq!(given, good.load(Ordering::Relaxed), "each good end was given once");
                assert_eq!(given, spawned, "if none was left out");
            }
            Ok(given)
        });
        assert!(given.is_err() || good.into_inner() == spawned, "a failure was kept quiet");
        given
    }

    /// Waits within a limit, which also holds for a scope's tasks.
    fn limited(&self) {
        with_timeout(micros(100), || {
            ums::scope(|s| {
                s.spawn(|| {
                    // Without the limit, this hour would be all that the story waits for.
                    let slept = ums::sleep(Duration::from_secs(3600));
                    assert!(slept.is_err(), "the scope's limit is not its tasks'");
                });
            });
        });
    }
}

fn micros(most: u64) -> Duration {
    Duration::from_micros(1 + below(most))
}

#[test]
fn nothing_is_lost_when_scopes_and_groups_are_cancelled() {
    check("nothing_is_lost_when_scopes_and_groups_are_cancelled", STALLS, || {
        let node = node_with(2, 4);
        let (sender, receiver) = bounded(below(3) as usize);
        let [sent, received, begun, ended] = [(); 4].map(|()| AtomicU64::new(0));
        let permits = Semaphore::new(PERMITS);
        let world = World { permits, sender, receiver, sent, received, begun, ended };
        let world = Arc::new(world);
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let world = world.clone();
                node.spawn(move || world.work(2, false)).unwrap()
            })
            .collect();
        for _ in 0..below(4) {
            ums::sim::thread_sleep(Duration::from_micros(below(400)));
            tasks[below(3) as usize].cancel();
        }
        for task in tasks {
            assert!(matches!(task.join(), Ok(_) | Err(JoinError::NeverRan)));
        }
        let left: u64 = world.receiver.try_iter().sum();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&world.sent), count(&world.received) + left, "a value was lost");
        assert_eq!(world.permits.available(), PERMITS, "a permit was lost");
        assert_eq!(count(&world.begun), count(&world.ended));
        end(node);
    });
}

#[test]
fn an_interval_keeps_to_its_grid_whatever_its_caller_does() {
    check("an_interval_keeps_to_its_grid_whatever_its_caller_does", STALLS, || {
        let node = node_with(1 + below(3) as usize, 4);
        node.run(|| {
            let period = micros(20 + below(200));
            let began = ums::sim::now();
            let (mut interval, mut ticks) = (Interval::new(period), 0);
            for _ in 0..20 {
                match with_timeout(micros(400), || interval.tick()) {
                    Ok(passed) => ticks += passed,
                    Err(error) => assert_eq!(error, WaitError::TimedOut),
                }
                // As many periods as ticks have passed, and not one more when the tick came.
                let now = ums::sim::now() - began;
                assert!(ticks * period.as_nanos() as u64 <= now, "{ticks} ticks in {now} ns");
                let _ = ums::sleep(micros(below(300)));
            }
            let now = ums::sim::now() - began;
            ticks += interval.tick().unwrap();
            let least = now / period.as_nanos() as u64;
            assert!(ticks >= least, "{ticks} ticks in {now} ns: ticks were lost");
        });
        end(node);
    });
}
