//! The mirrors that may have bytes of a known digest. Any of them will do, because none of them is trusted.

use bytes::Bytes;
use protocol::{Digest, Role, Uid, keys::ObjectKey, view::SeatView};
use store::{Fetch, FetchPlan, Limits, Sink, fetch::AllMirrorsFailed};

/// Base URLs to try, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mirrors {
    bases: Vec<String>,
}

impl Mirrors {
    pub fn of(bases: Vec<String>) -> Mirrors {
        Mirrors { bases }.without_repeats()
    }

    pub fn one(base: &str) -> Mirrors {
        Mirrors { bases: vec![base.to_owned()] }
    }

    /// Returns the validators in `first`, then the other validators, and `origin` last. `turn` rotates the order of
    /// `first`, which distributes readers over them.
    pub fn validators(seats: &[SeatView], first: &[Uid], origin: &str, turn: usize) -> Mirrors {
        let endpoint =
            |uid: &Uid| seats.iter().find(|seat| seat.id.uid == *uid).map(|seat| seat.endpoint.clone());
        let mut bases: Vec<String> = first.iter().filter_map(endpoint).collect();
        if !bases.is_empty() {
            let turn = turn % bases.len();
            bases.rotate_left(turn);
        }
        let others =
            seats.iter().filter(|seat| seat.role == Role::Validator).map(|seat| seat.endpoint.clone());
        bases.extend(others.chain([origin.to_owned()]));
        Mirrors { bases }.without_repeats()
    }

    /// Appends `others`, without repetitions.
    pub fn and(mut self, others: Mirrors) -> Mirrors {
        self.bases.extend(others.bases);
        self.without_repeats()
    }

    pub fn bases(&self) -> impl Iterator<Item = &str> {
        self.bases.iter().map(String::as_str)
    }

    /// Fetches the bytes of `key` from the first mirror that has them, checked against `digest`.
    ///
    /// # Errors
    /// If all mirrors fail.
    pub async fn get(
        &self,
        fetch: &dyn Fetch,
        key: &ObjectKey,
        digest: &Digest,
        limits: &Limits,
    ) -> Result<Bytes, AllMirrorsFailed> {
        Ok(self.plan().fetch(fetch, key, digest, limits).await?.0)
    }

    /// Fetches like [`Mirrors::get`], but passes bytes to `to` as they arrive. They are verified only when this
    /// succeeds.
    ///
    /// # Errors
    /// If all mirrors fail.
    pub async fn get_into(
        &self,
        fetch: &dyn Fetch,
        key: &ObjectKey,
        digest: &Digest,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), AllMirrorsFailed> {
        self.plan().fetch_into(fetch, key, digest, limits, to).await.map(|_| ())
    }

    pub(crate) fn plan(&self) -> FetchPlan {
        FetchPlan::new(&self.bases)
    }

    fn without_repeats(mut self) -> Mirrors {
        let mut seen = std::collections::BTreeSet::new();
        self.bases.retain(|base| !base.is_empty() && seen.insert(base.clone()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Block, Hotkey, SeatId};

    fn seat(uid: u16, role: Role, endpoint: &str) -> SeatView {
        SeatView {
            id: SeatId { uid: Uid(uid), registered_at: Block(1) },
            role,
            hotkey: Hotkey([0; 32]),
            coldkey: [0; 32],
            endpoint: endpoint.into(),
            stake: 1,
            claimable: 0,
            earned: 0,
        }
    }

    #[test]
    fn who_voted_comes_first_in_turn_and_nobody_twice() {
        let seats = [
            seat(0, Role::Validator, "a"),
            seat(1, Role::Validator, "b"),
            seat(2, Role::Validator, "c"),
            seat(3, Role::Miner, "m"),
        ];
        let mirrors = Mirrors::validators(&seats, &[Uid(1), Uid(2)], "origin", 3);
        assert_eq!(mirrors.bases, ["c", "b", "a", "origin"]);
        assert_eq!(Mirrors::one(&seats[3].endpoint).and(mirrors).bases, ["m", "c", "b", "a", "origin"]);
        assert_eq!(Mirrors::validators(&[], &[Uid(9)], "origin", 1).bases, ["origin"]);
    }
}
