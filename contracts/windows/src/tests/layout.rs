//! Migration of the storage of an earlier version.

use super::*;
use crate::migrations::{ToVersion1, version_1};
use frame::traits::OnRuntimeUpgrade;

#[test]
fn a_chain_of_the_first_layout_works_after_the_upgrade() {
    with_run(params(), || {
        play(0, &VALIDATORS);
        go_to(1, 0);
        for uid in [0, 2] {
            assert_ok!(commit(uid, 1, uid as u8));
        }
        // The first layout: presence without the epoch before, and no count of commitments.
        StorageVersion::new(0).put::<Windows>();
        let _ = TimesCommitted::<Test>::clear(u32::MAX, None);
        let old: Vec<_> = PresenceOf::<Test>::iter()
            .map(|(run, uid, presence)| {
                let key = PresenceOf::<Test>::hashed_key_for(run, uid);
                let old =
                    version_1::Presence { since: presence.since, last_attested: presence.last_attested };
                (key, old, presence)
            })
            .collect();
        assert_eq!(old.len(), 3);
        for (key, old, _) in &old {
            frame::deps::frame_support::storage::unhashed::put(key, old);
        }

        let _ = ToVersion1::<Test>::on_runtime_upgrade();

        assert_eq!(StorageVersion::get::<Windows>(), StorageVersion::new(1));
        for (key, _, expected) in old {
            let found: Option<Presence> = frame::deps::frame_support::storage::unhashed::get(&key);
            assert_eq!(found, Some(expected));
        }
        Windows::check_invariants().unwrap();
        assert_eq!(view(1).commitments.len(), 2);
        go_to(1, 9);
        for uid in VALIDATORS {
            assert_noop!(attest(uid, 1, &[(1, VALID)]), Error::<Test>::NothingCommitted);
            assert_ok!(attest(uid, 1, &[(0, VALID), (2, VALID)]));
        }
        go_to(1, 15);
        assert_eq!(selected(1), [0, 2]);
    });
}

#[test]
fn a_chain_of_this_layout_is_unchanged() {
    with_run(params(), || {
        StorageVersion::new(1).put::<Windows>();
        play(0, &VALIDATORS);
        let before = PresenceOf::<Test>::get(RUN, Uid(3));
        assert_storage_noop!({
            let _ = ToVersion1::<Test>::on_runtime_upgrade();
        });
        assert_eq!(PresenceOf::<Test>::get(RUN, Uid(3)), before);
    });
}
