//! What hyper asks of a runtime besides connections: tasks and time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ums::future::{sleep, sleep_until, spawn_future};

/// Spawns hyper's tasks, such as the streams of HTTP/2, as tasks of
/// [`spawn_future`](ums::future::spawn_future). It must be called on a worker, and panics
/// elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executor;

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[track_caller]
    fn execute(&self, future: F) {
        drop(spawn_future(future)); // the task goes on
    }
}

/// hyper's timeouts, as timers of the scheduler on which they are polled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timer;

impl hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep(sleep(duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep(sleep_until(deadline)))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn hyper::rt::Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(mut sleep) => sleep.0.reset(new_deadline),
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

struct Sleep(ums::future::Sleep);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl hyper::rt::Sleep for Sleep {}
