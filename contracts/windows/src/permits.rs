//! The checks of each call, without writes. A call runs them first, and is free of charge if they pass.

use crate::{
    pallet::*,
    tasks::{attest_revealed_by, vote_revealed_by},
};
use codec::Encode;
use frame::prelude::*;
use pallet_registry::Pallet as Registry;
use protocol::{
    Digest, Hotkey, Role, RunId, RunParams, SeatId, Terms, Uid, Window,
    reveal::{self, Salt},
    statement::{ProofError, SignedStatement, Statement, StatementKind},
    view::{Verdict, Vote},
};

/// A permitted commitment.
pub(crate) struct MayCommit {
    pub uid: Uid,
    /// Number of earlier commitments of the seat for this window.
    pub times: u8,
    /// Position of the seat among the window's slots.
    slot: usize,
}

/// A validator that will be punished.
pub(crate) struct Conviction {
    seat: SeatId,
    terms: Terms,
}

impl MayCommit {
    /// Counts this commitment.
    pub fn count_in<B: Get<u32>>(&self, times: &mut BoundedVec<u8, B>) {
        let enough = self.slot.saturating_add(1);
        if times.len() < enough {
            times.bounded_resize(enough, 0);
        }
        if let Some(times) = times.get_mut(self.slot) {
            *times = times.saturating_add(1);
        }
    }
}

impl<T: Config> Pallet<T> {
    pub(crate) fn may_commit(
        origin: OriginFor<T>,
        run: RunId,
        window: Window,
    ) -> Result<MayCommit, DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let (params, offset) = Self::open_window(run, window)?;
        ensure!(offset <= params.schedule.commit_by, Error::<T>::TooLate);
        let (uid, role) = Registry::<T>::seat_of(run, &hotkey).ok_or(Error::<T>::NotASeat)?;
        ensure!(role == Role::Miner, Error::<T>::NotAMiner);
        let record = Self::record(run, window)?;
        let slot = record.slots.binary_search(&uid).map_err(|_| Error::<T>::NotInThisWindow)?;
        // The seat with the dealt data may have left, and another may have registered on its uid since.
        let seat = Registry::<T>::seat(run, uid).ok_or(Error::<T>::NotASeat)?;
        ensure!(seat.since <= window, Error::<T>::NotInThisWindow);
        let times = TimesCommitted::<T>::get(run, window).get(slot).copied().unwrap_or(0);
        Ok(MayCommit { uid, times, slot })
    }

    pub(crate) fn may_attest(
        origin: OriginFor<T>,
        run: RunId,
        window: Window,
        verdicts: &[(Uid, Verdict)],
    ) -> Result<Uid, DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let (params, offset) = Self::open_window(run, window)?;
        ensure!(params.hidden_blocks == 0, Error::<T>::MustBeHidden);
        Self::in_phase(offset, params.schedule.commit_by, params.schedule.attest_by)?;
        let uid = Self::validator(run, &hotkey)?;
        ensure!(!Attestations::<T>::contains_key((run, window), uid), Error::<T>::AlreadyAttested);
        Self::check_verdicts(run, window, verdicts)?;
        Ok(uid)
    }

    pub(crate) fn may_attest_hidden(
        origin: OriginFor<T>,
        run: RunId,
        window: Window,
    ) -> Result<Uid, DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let (params, offset) = Self::open_window(run, window)?;
        ensure!(params.hidden_blocks > 0, Error::<T>::NotHidden);
        Self::in_phase(offset, params.schedule.commit_by, params.schedule.attest_by)?;
        let uid = Self::validator(run, &hotkey)?;
        let _ = Self::record(run, window)?;
        ensure!(!HiddenAttestations::<T>::contains_key((run, window), uid), Error::<T>::AlreadyAttested);
        Ok(uid)
    }

    pub(crate) fn may_reveal_attestation(
        origin: OriginFor<T>,
        run: RunId,
        window: Window,
        verdicts: &[(Uid, Verdict)],
        salt: &Salt,
    ) -> Result<Uid, DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let (params, offset) = Self::open_window(run, window)?;
        ensure!(params.hidden_blocks > 0, Error::<T>::NotHidden);
        Self::in_phase(offset, params.schedule.attest_by, attest_revealed_by(&params))?;
        let uid = Self::validator(run, &hotkey)?;
        ensure!(!Attestations::<T>::contains_key((run, window), uid), Error::<T>::AlreadyAttested);
        let hash = HiddenAttestations::<T>::get((run, window), uid).ok_or(Error::<T>::NothingHidden)?;
        Self::check_reveal(&hotkey, verdicts, salt, hash)?;
        Self::check_verdicts(run, window, verdicts)?;
        Ok(uid)
    }

    pub(crate) fn may_vote(
        origin: OriginFor<T>,
        run: RunId,
        window: Window,
        vote: &Vote,
    ) -> Result<Uid, DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let (params, offset) = Self::open_window(run, window)?;
        ensure!(params.hidden_blocks == 0, Error::<T>::MustBeHidden);
        Self::in_phase(offset, params.schedule.attest_by, params.schedule.vote_by)?;
        let uid = Self::member(run, window, &hotkey)?;
        Self::check_state_root(&params, window, vote)?;
        ensure!(!Votes::<T>::contains_key((run, window), uid), Error::<T>::AlreadyVoted);
        Ok(uid)
    }

    pub(crate) fn may_vote_hidden(
        origin: OriginFor<T>,
        run: RunId,
        window: Window,
    ) -> Result<Uid, DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let (params, offset) = Self::open_window(run, window)?;
        ensure!(params.hidden_blocks > 0, Error::<T>::NotHidden);
        Self::in_phase(offset, attest_revealed_by(&params), params.schedule.vote_by)?;
        let uid = Self::member(run, window, &hotkey)?;
        ensure!(!HiddenVotes::<T>::contains_key((run, window), uid), Error::<T>::AlreadyVoted);
        Ok(uid)
    }

    pub(crate) fn may_reveal_vote(
        origin: OriginFor<T>,
        run: RunId,
        window: Window,
        vote: &Vote,
        salt: &Salt,
    ) -> Result<Uid, DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let (params, offset) = Self::open_window(run, window)?;
        ensure!(params.hidden_blocks > 0, Error::<T>::NotHidden);
        Self::in_phase(offset, params.schedule.vote_by, vote_revealed_by(&params))?;
        // It was a member when it committed; a window's active set does not change.
        let uid = Self::validator(run, &hotkey)?;
        ensure!(!Votes::<T>::contains_key((run, window), uid), Error::<T>::AlreadyVoted);
        let hash = HiddenVotes::<T>::get((run, window), uid).ok_or(Error::<T>::NothingHidden)?;
        Self::check_reveal(&hotkey, vote, salt, hash)?;
        Self::check_state_root(&params, window, vote)?;
        Ok(uid)
    }

    /// Returns the validator's seat, and the open window.
    pub(crate) fn may_anchor(
        origin: OriginFor<T>,
        run: RunId,
        window: Window,
    ) -> Result<(Uid, Window), DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let details = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?;
        let uid = Self::validator(run, &hotkey)?;
        let record = Records::<T>::get(run, window).ok_or(Error::<T>::WindowNotKept)?;
        ensure!(record.outcome.is_some(), Error::<T>::TooEarly);
        let seat = Registry::<T>::seat(run, uid).ok_or(Error::<T>::NotASeat)?;
        ensure!(seat.since <= window, Error::<T>::NotInThisWindow);
        ensure!(!Receipts::<T>::contains_key((run, window), uid), Error::<T>::AlreadyAnchored);
        let open = Registry::<T>::window_now(&details).ok_or(Error::<T>::NotStarted)?;
        Ok((uid, open))
    }

    /// Checks a vote to rewind to a checkpoint. The write checks that there is a vote to withdraw.
    pub(crate) fn may_vote_rewind(
        origin: OriginFor<T>,
        run: RunId,
        uid: Uid,
        to: Option<Window>,
    ) -> DispatchResult {
        let (_, seat) = Registry::<T>::seat_of_coldkey(origin, run, uid)?;
        ensure!(seat.role == Role::Validator, Error::<T>::NotAValidator);
        if let Some(to) = to {
            let open = ProgressOf::<T>::get(run).and_then(|progress| progress.window);
            let next = open.ok_or(Error::<T>::NotACheckpoint)?.next();
            Self::rewind_target(run, next, to).ok_or(Error::<T>::NotACheckpoint)?;
        }
        Ok(())
    }

    /// Checks that the holder of `hotkey` can be punished for `statement`. Does not check signatures.
    pub(crate) fn may_convict(hotkey: &Hotkey, statement: &Statement) -> Result<Conviction, Error<T>> {
        let Statement { run, window, uid, .. } = *statement;
        let terms = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?.terms;
        let record = Records::<T>::get(run, window).ok_or(Error::<T>::WindowNotKept)?;
        let account = hotkey.0.into();
        let seat = Registry::<T>::holder_of(run, &account).ok_or(Error::<T>::NotASeat)?;
        ensure!(seat.uid == uid, Error::<T>::NotItsSeat);
        // The window's active set identifies its holders: a holder is not liable for a predecessor or successor.
        let place = record.active_set.binary_search_by_key(&uid, |(member, _)| *member);
        let registered_at = place.ok().and_then(|place| record.registered_at.get(place));
        ensure!(registered_at == Some(&seat.registered_at), Error::<T>::NotInActiveSet);
        ensure!(!Punished::<T>::contains_key(run, seat), Error::<T>::AlreadyPunished);
        Ok(Conviction { seat, terms })
    }

    /// Checks that a signed statement differs from the chain's record of the same holder of the seat.
    pub(crate) fn may_contradict(hotkey: &Hotkey, signed: &SignedStatement) -> Result<Conviction, Error<T>> {
        let Statement { run, window, uid, kind, digest } = signed.statement;
        // The holder decided the window, so the chain's record of the uid is by this holder.
        let conviction = Self::may_convict(hotkey, &signed.statement)?;
        let key = (run, window);
        let on_record = match kind {
            StatementKind::Attestation => {
                Attestations::<T>::get(key, uid).map(|own| Digest::of(&own.encode()))
            }
            StatementKind::Vote => Votes::<T>::get(key, uid).map(|own| Digest::of(&own.encode())),
            StatementKind::Receipts => Receipts::<T>::get(key, uid).map(|own| own.receipts),
        };
        let on_record = on_record.ok_or(Error::<T>::NothingOnRecord)?;
        ensure!(on_record != digest, Error::<T>::NoContradiction);
        signed.verify(hotkey, &Registry::<T>::genesis()).map_err(|_| Error::<T>::NotSigned)?;
        Ok(conviction)
    }

    /// Punishes a convicted validator, once per seat: slashes it, and expels it at the next opening.
    pub(crate) fn punish(conviction: Conviction, statement: &Statement, reporter: T::AccountId) {
        let Statement { run, window, uid, kind, .. } = *statement;
        let Conviction { seat, terms } = conviction;
        Punished::<T>::insert(run, seat, ());
        let slashed = Registry::<T>::slash(run, seat, terms.equivocation_slash, Some(&reporter));
        Registry::<T>::expel(run, seat);
        Self::deposit_event(Event::EquivocationPunished { run, window, uid, kind, reporter, slashed });
    }

    /// Records an attestation. The selection decides whether its validator was present (PROT-3).
    pub(crate) fn record_attestation(run: RunId, window: Window, uid: Uid, verdicts: Verdicts<T>) {
        let valid = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Valid).count() as u32;
        let faulty = (verdicts.len() as u32).saturating_sub(valid);
        Attestations::<T>::insert((run, window), uid, verdicts);
        Self::deposit_event(Event::Attested { run, window, uid, valid, faulty });
    }

    /// Returns the run's parameters and the offset in `window`, which must be the open one.
    fn open_window(run: RunId, window: Window) -> Result<(RunParams, u32), Error<T>> {
        let params = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?.params;
        let (open, offset) = params.schedule.locate(Registry::<T>::now()).ok_or(Error::<T>::NotStarted)?;
        ensure!(window >= open, Error::<T>::TooLate);
        ensure!(window <= open, Error::<T>::TooEarly);
        Ok((params, offset))
    }

    /// Checks that `offset` is after one deadline and not after the next.
    fn in_phase(offset: u32, after: u32, until: u32) -> Result<(), Error<T>> {
        ensure!(offset > after, Error::<T>::TooEarly);
        ensure!(offset <= until, Error::<T>::TooLate);
        Ok(())
    }

    /// Returns the record of the open window. It is missing while the opening is delayed.
    fn record(run: RunId, window: Window) -> Result<Record<T>, Error<T>> {
        Records::<T>::get(run, window).ok_or(Error::<T>::TooEarly)
    }

    fn validator(run: RunId, hotkey: &T::AccountId) -> Result<Uid, Error<T>> {
        let (uid, role) = Registry::<T>::seat_of(run, hotkey).ok_or(Error::<T>::NotASeat)?;
        ensure!(role == Role::Validator, Error::<T>::NotAValidator);
        Ok(uid)
    }

    /// Returns the validator's seat, if it is in the active set and the selection is not empty.
    fn member(run: RunId, window: Window, hotkey: &T::AccountId) -> Result<Uid, Error<T>> {
        let uid = Self::validator(run, hotkey)?;
        let record = Self::record(run, window)?;
        let decides = record.active_set.binary_search_by_key(&uid, |(member, _)| *member).is_ok();
        ensure!(decides, Error::<T>::NotInActiveSet);
        let selection = record.selection.ok_or(Error::<T>::TooEarly)?;
        ensure!(!selection.selected.is_empty(), Error::<T>::NothingSelected);
        Ok(uid)
    }

    /// Checks that verdicts ascend by uid, each on a seat with a commitment.
    fn check_verdicts(run: RunId, window: Window, verdicts: &[(Uid, Verdict)]) -> Result<(), Error<T>> {
        ensure!(verdicts.windows(2).all(|pair| pair[0].0 < pair[1].0), Error::<T>::VerdictsNotSorted);
        let record = Self::record(run, window)?;
        let times = TimesCommitted::<T>::get(run, window);
        let committed = |uid: &Uid| {
            let slot = record.slots.binary_search(uid).ok();
            slot.and_then(|slot| times.get(slot)).is_some_and(|times| *times > 0)
        };
        ensure!(verdicts.iter().all(|(uid, _)| committed(uid)), Error::<T>::NothingCommitted);
        Ok(())
    }

    fn check_state_root(params: &RunParams, window: Window, vote: &Vote) -> Result<(), Error<T>> {
        match (params.is_checkpoint(window), vote.state_root) {
            (true, None) => Err(Error::<T>::StateRootMissing),
            (false, Some(_)) => Err(Error::<T>::StateRootUnexpected),
            _ => Ok(()),
        }
    }

    fn check_reveal<P: Encode + ?Sized>(
        hotkey: &T::AccountId,
        payload: &P,
        salt: &Salt,
        hash: Digest,
    ) -> Result<(), Error<T>> {
        let hotkey = Hotkey(hotkey.clone().into());
        ensure!(reveal::commitment(payload, salt, &hotkey) == hash, Error::<T>::OtherThanCommitted);
        Ok(())
    }
}

impl<T> From<ProofError> for Error<T> {
    fn from(reason: ProofError) -> Error<T> {
        match reason {
            ProofError::DifferentSubject => Error::DifferentSubjects,
            ProofError::SameDigest => Error::NoContradiction,
            ProofError::NotSigned(_) => Error::NotSigned,
        }
    }
}
