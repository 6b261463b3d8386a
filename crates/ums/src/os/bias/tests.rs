//! Tests of the states of a bias.

use super::*;

/// A use of the lock, by the base if the bias does not allow it without. Returns whether it was
/// without, and whether a barrier was needed.
fn used(bias: &Bias, me: u32) -> (bool, bool) {
    if bias.enter(me) {
        bias.leave();
        return (true, false);
    }
    let mut barrier = false;
    bias.used_by(me, || barrier = true);
    (false, barrier)
}

#[test]
fn the_only_user_of_a_lock_needs_the_base_no_more_until_another_comes() {
    let bias = Bias::new();
    for _ in 0..TRIED {
        assert_eq!(used(&bias, 7), (false, false));
    }
    assert_eq!(used(&bias, 7), (true, false));
    assert_eq!(used(&bias, NO_HOLDER), (false, true));
    assert_eq!(bias.owner.load(Relaxed), SHARED);
    for _ in 0..2 * TRIED {
        assert_eq!(used(&bias, 7), (false, false), "it is never biased again");
    }
}

#[test]
fn a_lock_whose_first_uses_are_by_several_is_shared_without_a_barrier() {
    for users in [[7, 8], [7, NO_HOLDER], [NO_HOLDER, 7]] {
        let bias = Bias::new();
        for user in users {
            assert_eq!(used(&bias, user), (false, false));
        }
        assert_eq!(bias.owner.load(Relaxed), SHARED);
    }
}

#[test]
#[should_panic(expected = "locked twice")]
fn a_holder_that_has_the_lock_cannot_take_it_again() {
    let bias = Bias::new();
    for _ in 0..TRIED {
        used(&bias, 7);
    }
    assert!(bias.enter(7));
    bias.enter(7);
}
