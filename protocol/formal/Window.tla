-------------------------------- MODULE Window --------------------------------
(* One window of a run, and the hand-over into the next: commit, reveal, attest, select, vote, fix. What the chain does is what
   `contracts/windows` does (`permits.rs`: which seat may call what, and when; `tasks.rs`, `tally.rs`: what follows from it). What the
   parties may do is everything that the rules leave to them.

   Time is a row of phases. Within a phase everybody acts in any order, or not at all: a message that is lost, or comes too late,
   is an act that has not happened when the phase ends. Only the steady are waited for, which is what "steady" means.

   Validators are of three kinds. The steady are honest, there, and lose nothing. The faltering are honest too, but may be away at
   any time, lose any message, and take a failure of their own for one of the miner's. The dishonest do all that their keys allow.
   Miners are diligent or crooked; an honest miner that fails does less than a crooked one may. *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Steady, Faltering, Dishonest,                   \* the validators of the active_set (PROT-3)
    StakeSteady, StakeFaltering, StakeDishonest,    \* what each one of a kind has at stake
    Diligent, Crooked,                              \* the miners
    Windows,                                        \* how many windows there are
    Places, MinContributions,                       \* of a selection (PROT-16)
    Hidden,                                         \* whether attestations and votes are bound first and shown later (PROT-30)
    MayPause,                                       \* whether the active_set may be below its quorum as a window opens (PROT-3)
    None,                                           \* nothing
    Lies,                                           \* updates that are no merge of anything, which the dishonest may vote
    \* What would be wrong. Each is FALSE but in the cases that show what a rule is for.
    UploadsEarly,                                   \* diligent miners upload before the commit deadline (PROT-11)
    CommitsLate                                     \* the chain takes commitments after the deadline (PROT-11)

VARIABLES
    window, phase,
    paused,         \* as taken down when the window opened
    lineage,        \* the updates that have led to this window's model, oldest first (PROT-19)
    commitment,     \* on the chain: what each miner's seat is committed to
    uploaded,       \* the diligent miners whose bytes any reader can fetch
    bound, shown,   \* on the chain: each validator's attestation as a hash, and in the open
    choice,         \* on the chain: the seats found valid and faulty, and those selected with their digests
    ballot, vote,   \* on the chain: each validator's vote as a hash, and in the open
    behind,         \* honest validators that do not hold the window's model
    history         \* the outcome of each window that is fixed

state == <<window, phase, paused, lineage, commitment, uploaded, bound, shown, choice, ballot, vote, behind, history>>

--------------------------------------------------------------------------------
(* The participants, and what stake decides. *)

Honest == Steady \union Faltering
Validators == Honest \union Dishonest
Miners == Diligent \union Crooked

StakeOf(group) ==
    StakeSteady * Cardinality(group \intersect Steady)
        + StakeFaltering * Cardinality(group \intersect Faltering)
        + StakeDishonest * Cardinality(group \intersect Dishonest)

(* `select::two_thirds`: of the whole active_set's stake, absent members included. *)
TwoThirds(group) == 3 * StakeOf(group) >= 2 * StakeOf(Validators)

--------------------------------------------------------------------------------
(* What a digest stands for. Digests do not collide, so one is as good as the bytes: whom the signed header names, whose training
   is in the body, and whether a decoder takes it. A header of another run, window or lineage is one more way not to be sound. *)

Digests == [seat : Miners, work : Miners, sound : BOOLEAN]

OwnWork(miner) == [seat |-> miner, work |-> miner, sound |-> TRUE]

(* PROT-9: what every reader of the bytes can check. The bytes do not show whose work it is. *)
IsFlawless(miner) == commitment[miner] /= None /\ commitment[miner].sound /\ commitment[miner].seat = miner

(* What a crooked miner has something to commit to: work of its own, sound or not; work of others that it can read, under its own
   header; and any digest that is on the chain already. *)
MayCommit(miner) ==
    IF miner \in Diligent THEN {OwnWork(miner)}
    ELSE [seat : {miner}, work : {miner} \union uploaded, sound : {TRUE}]
            \union [seat : {miner}, work : {miner}, sound : {FALSE}]
            \union {commitment[other] : other \in {other \in Miners : commitment[other] /= None}}

--------------------------------------------------------------------------------
(* What a validator says of one seat (PROT-14). "unseen" is a seat that it does not name. *)

Verdicts == {"valid", "faulty", "unseen"}

(* A crooked miner's endpoint answers each reader as it likes: with the bytes, if they are what it committed to, with others, with
   nothing, or never. So what is flawless may be found anything, and what is flawed anything but valid. Where there is no
   commitment there is nothing to name: the chain refuses it. *)
MayFind(validator, miner) ==
    IF commitment[miner] = None THEN {"unseen"}
    ELSE IF validator \in Dishonest THEN Verdicts
    ELSE IF miner \in Crooked THEN (IF IsFlawless(miner) THEN Verdicts ELSE {"faulty", "unseen"})
    ELSE IF validator \in Steady THEN {"valid"}
    ELSE Verdicts

(* An attestation without a verdict counts like none, and only the steady are made to give one. *)
Attestations(validator) ==
    {said \in [Miners -> Verdicts] :
        /\ \A miner \in Miners : said[miner] \in MayFind(validator, miner)
        /\ validator \in Steady \/ \E miner \in Miners : said[miner] /= "unseen"}

WhoSay(verdict, miner) == {v \in Validators : shown[v] /= None /\ shown[v][miner] = verdict}

NoChoice == [valid |-> {}, faulty |-> {}, selected |-> {}]

--------------------------------------------------------------------------------
(* An update is the merge of what was selected, onto the lineage, and of nothing else (PROT-17): every holder of the bytes gets the same
   one. The dishonest may vote any other. *)

Merge(on, selected) == [on |-> on, of |-> {<<chosen.uid, chosen.digest>> : chosen \in selected}]

TheMerge == Merge(Len(lineage), choice.selected)

(* PROT-15: honest attesters serve what they call valid. The faltering may be gone by now, and the dishonest refuse. *)
IsServed(chosen) == \E v \in Steady : shown[v] /= None /\ shown[v][chosen.uid] = "valid"

CanMerge(validator) == validator \notin behind /\ \A chosen \in choice.selected : IsServed(chosen)

(* An honest validator votes the merge or nothing. A validator that is not sure of the bytes may still have got them from another. *)
MayVote(validator) ==
    IF validator \in behind THEN {}
    ELSE IF validator \in Honest THEN {TheMerge}
    ELSE {TheMerge} \union Lies

WhoVoted(update) == {v \in Validators : vote[v] = update}

Agreed == {update \in {vote[v] : v \in Validators} \ {None} : TwoThirds(WhoVoted(update))}

Void == [merged |-> FALSE, update |-> None]
Merged(update) == [merged |-> TRUE, update |-> update]

--------------------------------------------------------------------------------
Opened(mayPause) ==
    /\ paused' \in (IF mayPause THEN BOOLEAN ELSE {FALSE})
    /\ phase' = "commit"
    /\ commitment' = [m \in Miners |-> None]
    /\ uploaded' = {}
    /\ bound' = [v \in Validators |-> None]
    /\ shown' = [v \in Validators |-> None]
    /\ choice' = NoChoice
    /\ ballot' = [v \in Validators |-> None]
    /\ vote' = [v \in Validators |-> None]

Init ==
    /\ window = 1
    /\ phase = "commit"
    /\ paused \in (IF MayPause THEN BOOLEAN ELSE {FALSE})
    /\ lineage = <<>>
    /\ commitment = [m \in Miners |-> None]
    /\ uploaded = {}
    /\ bound = [v \in Validators |-> None]
    /\ shown = [v \in Validators |-> None]
    /\ choice = NoChoice
    /\ ballot = [v \in Validators |-> None]
    /\ vote = [v \in Validators |-> None]
    /\ behind = {}
    /\ history = <<>>

(* `commit`. Until the deadline a later commitment replaces an earlier one (PROT-11). *)
Commit(miner) ==
    /\ phase = "commit" \/ (CommitsLate /\ phase = "reveal" /\ miner \in Crooked)
    /\ \E digest \in MayCommit(miner) :
        /\ commitment[miner] /= digest
        /\ commitment' = [commitment EXCEPT ![miner] = digest]
    /\ UNCHANGED <<window, phase, paused, lineage, uploaded, bound, shown, choice, ballot, vote, behind, history>>

(* A diligent miner uploads what it committed to, and not before the deadline has passed. *)
Upload(miner) ==
    /\ phase = "reveal" \/ (UploadsEarly /\ phase = "commit" /\ commitment[miner] /= None)
    /\ miner \in Diligent \ uploaded
    /\ uploaded' = uploaded \union {miner}
    /\ UNCHANGED <<window, phase, paused, lineage, commitment, bound, shown, choice, ballot, vote, behind, history>>

(* `attest`, or `attest_hidden`: once a validator and window. *)
Attest(validator) ==
    /\ phase = "attest"
    /\ bound[validator] = None
    /\ \E said \in Attestations(validator) :
        /\ bound' = [bound EXCEPT ![validator] = said]
        /\ shown' = IF Hidden THEN shown ELSE [shown EXCEPT ![validator] = said]
    /\ UNCHANGED <<window, phase, paused, lineage, commitment, uploaded, choice, ballot, vote, behind, history>>

(* `reveal_attestation`: what was bound, and nothing else. *)
Show(validator) ==
    /\ phase = "show"
    /\ bound[validator] /= None
    /\ shown[validator] = None
    /\ shown' = [shown EXCEPT ![validator] = bound[validator]]
    /\ UNCHANGED <<window, phase, paused, lineage, commitment, uploaded, bound, choice, ballot, vote, behind, history>>

(* The step after the attestations. Which of the valid seats are drawn is the seed's doing: here it may be any of them. *)
Choose ==
    LET valid == {m \in Miners : commitment[m] /= None /\ TwoThirds(WhoSay("valid", m))}
        faulty == {m \in Miners : commitment[m] /= None /\ TwoThirds(WhoSay("faulty", m))} \ valid
        few == Cardinality(valid) < MinContributions
        drawn == {s \in SUBSET valid : MinContributions <= Cardinality(s) /\ Cardinality(s) <= Places}
    IN \E uids \in (IF paused \/ few THEN {{}} ELSE drawn) :
        choice' = [valid |-> valid, faulty |-> faulty, selected |-> {[uid |-> m, digest |-> commitment[m]] : m \in uids}]

(* `vote`, or `vote_hidden`: once a validator and window, and only where something is selected. *)
Vote(validator) ==
    /\ phase = "vote"
    /\ choice.selected /= {}
    /\ ballot[validator] = None
    /\ \E update \in MayVote(validator) :
        /\ ballot' = [ballot EXCEPT ![validator] = update]
        /\ vote' = IF Hidden THEN vote ELSE [vote EXCEPT ![validator] = update]
    /\ UNCHANGED <<window, phase, paused, lineage, commitment, uploaded, bound, shown, choice, behind, history>>

(* `reveal_vote`. *)
Reveal(validator) ==
    /\ phase = "count"
    /\ ballot[validator] /= None
    /\ vote[validator] = None
    /\ vote' = [vote EXCEPT ![validator] = ballot[validator]]
    /\ UNCHANGED <<window, phase, paused, lineage, commitment, uploaded, bound, shown, choice, ballot, behind, history>>

(* The step after the votes (PROT-19). *)
Fix ==
    LET outcome == IF paused \/ choice.selected = {} \/ Agreed = {} THEN Void ELSE Merged(CHOOSE update \in Agreed : TRUE)
    IN  /\ history' = Append(history, outcome)
        /\ lineage' = IF outcome.merged THEN Append(lineage, outcome.update) ELSE lineage

(* An update is fetched from a validator that voted it and published it before. Of those only the steady are sure to be there. *)
CanFollow(outcome) == outcome.merged => \E v \in Steady : vote[v] = outcome.update

(* The phases end in order. The steady are waited for, as far as there is something that it can do. *)
End ==
    \/  /\ phase = "commit"
        /\ \A m \in Diligent : commitment[m] /= None
        /\ phase' = "reveal"
        /\ UNCHANGED <<window, paused, lineage, commitment, uploaded, bound, shown, choice, ballot, vote, behind, history>>
    \/  /\ phase = "reveal"
        /\ Diligent \subseteq uploaded
        /\ phase' = "attest"
        /\ UNCHANGED <<window, paused, lineage, commitment, uploaded, bound, shown, choice, ballot, vote, behind, history>>
    \/  /\ phase = "attest"
        /\ \A v \in Steady : bound[v] /= None
        /\ IF Hidden THEN phase' = "show" /\ UNCHANGED choice ELSE phase' = "vote" /\ Choose
        /\ UNCHANGED <<window, paused, lineage, commitment, uploaded, bound, shown, ballot, vote, behind, history>>
    \/  /\ phase = "show"
        /\ \A v \in Steady : shown[v] /= None
        /\ phase' = "vote"
        /\ Choose
        /\ UNCHANGED <<window, paused, lineage, commitment, uploaded, bound, shown, ballot, vote, behind, history>>
    \/  /\ phase = "vote"
        /\ choice.selected = {} \/ \A v \in Steady : ballot[v] /= None \/ ~CanMerge(v)
        /\ IF Hidden THEN phase' = "count" /\ UNCHANGED <<lineage, history>> ELSE phase' = "fixed" /\ Fix
        /\ UNCHANGED <<window, paused, commitment, uploaded, bound, shown, choice, ballot, vote, behind>>
    \/  /\ phase = "count"
        /\ \A v \in Steady : vote[v] /= None \/ ballot[v] = None
        /\ phase' = "fixed"
        /\ Fix
        /\ UNCHANGED <<window, paused, commitment, uploaded, bound, shown, choice, ballot, vote, behind>>

(* The next window opens. A node without the update stays behind, and reports it; the faltering may stay behind in any case. *)
Open ==
    /\ phase = "fixed"
    /\ window < Windows
    /\ window' = window + 1
    /\ LET stuck == IF CanFollow(history[window]) THEN {} ELSE Steady
       IN \E late \in SUBSET Faltering : behind' = stuck \union late
    /\ Opened(MayPause)
    /\ UNCHANGED <<lineage, history>>

Next ==
    \/ \E miner \in Miners : Commit(miner) \/ Upload(miner)
    \/ \E validator \in Validators : Attest(validator) \/ Show(validator) \/ Vote(validator) \/ Reveal(validator)
    \/ End
    \/ Open

Spec == Init /\ [][Next]_state

--------------------------------------------------------------------------------
(* What must hold, by rule. `IsChosen` and `IsFixed` say from when on there is something to hold. *)

IsChosen == phase \in {"vote", "count", "fixed"}
IsFixed == phase = "fixed"
Outcome == history[window]

TypeOK ==
    /\ window \in 1..Windows
    /\ phase \in {"commit", "reveal", "attest", "show", "vote", "count", "fixed"}
    /\ \A m \in Miners : commitment[m] = None \/ commitment[m] \in Digests
    /\ \A v \in Validators : bound[v] = None \/ bound[v] \in [Miners -> Verdicts]
    /\ \A v \in Validators : shown[v] = None \/ shown[v] = bound[v]
    /\ \A v \in Validators : vote[v] = None \/ vote[v] = ballot[v]
    /\ behind \subseteq Honest
    /\ Len(history) = (IF IsFixed THEN window ELSE window - 1)

(* One commitment binds, and none is made or replaced once the deadline has passed. *)
PROT_11_bound_by_the_deadline ==
    [][commitment' /= commitment => phase = "commit" \/ phase' = "commit"]_state

(* No miner sees another's work in time to hand it in as its own. *)
PROT_11_no_work_is_copied == \A chosen \in choice.selected : chosen.digest.work = chosen.uid

(* What is merged is what its seat committed to, sound, and under its own header. *)
PROT_9_selected_is_flawless ==
    \A chosen \in choice.selected :
        chosen.digest = commitment[chosen.uid] /\ chosen.digest.sound /\ chosen.digest.seat = chosen.uid

(* No honest seat whose bytes can be had is fixed as faulty, whatever the dishonest sign and the faltering mistake. *)
PROT_14_no_honest_seat_is_faulty == choice.faulty \intersect Diligent = {}

(* No seat is both, and one without a commitment is neither. *)
PROT_14_one_finding ==
    /\ choice.valid \intersect choice.faulty = {}
    /\ \A m \in choice.valid \union choice.faulty : commitment[m] /= None

(* What is selected every honest validator can fetch, also when miner, dishonest and faltering are silent. *)
PROT_15_selected_can_be_fetched == \A chosen \in choice.selected : IsServed(chosen)

(* Selected are seats that two thirds attested, as many as there are places at most, and enough or none. *)
PROT_16_selected_is_attested ==
    /\ \A chosen \in choice.selected : TwoThirds(WhoSay("valid", chosen.uid))
    /\ Cardinality(choice.selected) <= Places
    /\ choice.selected = {} \/ Cardinality(choice.selected) >= MinContributions

(* There are never two updates that two thirds voted. *)
PROT_19_one_update == Cardinality(Agreed) <= 1

(* What is fixed never changes. *)
PROT_19_fixed_for_good ==
    [][Len(history') >= Len(history) /\ \A w \in 1..Len(history) : history'[w] = history[w]]_state

(* The lineage is made of the merged windows' updates and of nothing else: a void window leaves it as it was. *)
PROT_19_void_leaves_the_lineage ==
    lineage = [i \in 1..Len(SelectSeq(history, LAMBDA outcome : outcome.merged))
                |-> SelectSeq(history, LAMBDA outcome : outcome.merged)[i].update]

(* What is fixed as merged is the merge of what was selected. *)
PROT_19_merged_is_the_merge ==
    IsFixed /\ Outcome.merged => Outcome.update = Merge(Len(lineage) - 1, choice.selected)

(* No honest validator loses an epoch's dividends for a dissent. *)
PROT_19_no_honest_dissent ==
    IsFixed /\ Outcome.merged => \A v \in Honest : vote[v] \in {None, Outcome.update}

(* A node that is present follows: it can fetch each update that is fixed, and holds the window's model. *)
PROT_20_the_steady_follow == behind \intersect Steady = {}

(* A window with a quorum is merged. This one needs two thirds of the stake to be steady. *)
PROT_19_merged_in_the_end == IsFixed /\ ~paused => Outcome.merged

(* A window that is paused is void (PROT-3). *)
PROT_3_paused_is_void == IsFixed /\ paused => ~Outcome.merged

--------------------------------------------------------------------------------
(* What must be possible: each is said to be impossible, and the checker must find that it is not. *)

Never_merged == ~(IsFixed /\ Outcome.merged)
Never_void_without_agreement == ~(IsFixed /\ ~paused /\ choice.selected /= {} /\ ~Outcome.merged)
Never_void_with_too_few == ~(IsFixed /\ ~paused /\ choice.selected = {})
Never_faulty == choice.faulty = {}
Never_merged_after_void == ~(IsFixed /\ window > 1 /\ Outcome.merged /\ ~history[1].merged)
Never_crooked_selected == \A chosen \in choice.selected : chosen.uid \in Diligent
Never_a_copied_digest == \A m \in Crooked : commitment[m] = None \/ commitment[m].seat = m
(* A miner that shows its bytes to two thirds and hides them from the rest is merged all the same. *)
Never_selected_where_the_steady_saw_a_fault ==
    ~(\E chosen \in choice.selected : \E v \in Steady : shown[v] /= None /\ shown[v][chosen.uid] = "faulty")

(* Where a case ends with the selection: states beyond it are not looked at. *)
UntilChosen == ~IsChosen
================================================================================
