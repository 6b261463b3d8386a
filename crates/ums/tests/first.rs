//! First steps, in both kinds.
#![allow(unsafe_code)]
use std::sync::Arc;
use std::sync::atomic::*;
use std::time::{Duration, Instant};

fn nodes(f: impl Fn(ums::Node)) {
    for fiber in [false, true] {
        for n in [1, 2, 4] {
            eprintln!("fiber {fiber} n {n}");
            let b = ums::Node::builder().schedulers(n);
            let b = if fiber { unsafe { b.fiber_workers() } } else { b };
            let node = b.build().unwrap();
            f(node.clone());
            let r = node.clone();
            drop(r);
            let rep = node.shutdown(Duration::from_secs(5));
            assert_eq!(rep, ums::ShutdownReport::default());
        }
    }
}

#[test]
fn sleeps() {
    nodes(|node| {
        let t = Instant::now();
        let s = node.run(|| {
            let hs: Vec<_> = (0..100u64)
                .map(|i| {
                    ums::spawn(move || {
                        ums::sleep(Duration::from_millis(i % 10)).unwrap();
                        i
                    })
                })
                .collect();
            hs.into_iter().map(|h| h.join().unwrap()).sum::<u64>()
        });
        assert_eq!(s, 4950);
        eprintln!("took {:?}", t.elapsed());
    });
}

#[test]
fn yields() {
    nodes(|node| {
        let t = Instant::now();
        node.run(|| {
            let hs: Vec<_> = (0..10u64)
                .map(|_| {
                    ums::spawn(move || {
                        for _ in 0..1000 {
                            ums::yield_now()
                        }
                    })
                })
                .collect();
            hs.into_iter().for_each(|h| h.join().unwrap());
        });
        eprintln!("took {:?}", t.elapsed());
    });
}

#[test]
fn preempts() {
    nodes(|node| {
        let t = Instant::now();
        let n = Arc::new(AtomicUsize::new(0));
        let m = n.clone();
        node.run(move || {
            let hs: Vec<_> = (0..20u64)
                .map(|_| {
                    let m = m.clone();
                    ums::spawn(move || {
                        ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || {
                            std::thread::sleep(Duration::from_millis(20))
                        });
                        m.fetch_add(1, Ordering::Relaxed);
                    })
                })
                .collect();
            hs.into_iter().for_each(|h| h.join().unwrap());
        });
        assert_eq!(n.load(Ordering::Relaxed), 20);
        eprintln!("took {:?}", t.elapsed());
    });
}

#[test]
fn scopes() {
    nodes(|node| {
        node.run(move || {
            let mut v = vec![0u64; 1000];
            ums::scope(|s| {
                for (i, x) in v.iter_mut().enumerate() {
                    s.spawn(move || {
                        ums::yield_now();
                        *x = i as u64
                    });
                }
            });
            assert_eq!(v.iter().sum::<u64>(), 499500);
        });
    });
}
