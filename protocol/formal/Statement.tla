------------------------------- MODULE Statement -------------------------------
(* What a validator says of one matter of one window, outside the chain and on it, and which validators it can convict (PROT-21): an
   honest validator that crashes and looks again, which may see something else, and a dishonest one that signs any value.
   Calls and conditions are those of `contracts/windows` (`permits.rs`: may_convict, may_contradict) and `protocol` (`statement.rs`).
   It does not matter whether the matter is an attestation, a vote or receipts. *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    None,
    Values,         \* what may be said of the matter
    Signs           \* what the honest sign: "sealed" what is on its disk, "recorded" what is on the chain, "remembered" what it has in mind

VARIABLES
    mind, disk,     \* of the honest validator. A crash leaves the disk
    sent,           \* its calls on their way to the chain, also those of before a crash
    bound,          \* the dishonest validator's hash on the chain, where such matters are hidden (PROT-30)
    record,         \* on the chain: what each validator put there, once
    said,           \* what each validator has signed. A reader may show it on
    slashed,        \* how often each validator was punished for this matter
    over            \* whether the window is: nothing is put on the chain any more, but may be reported

state == <<mind, disk, sent, bound, record, said, slashed, over>>

Validators == {"honest", "crook"}

Init ==
    /\ mind = None /\ disk = None /\ sent = {} /\ bound = None /\ over = FALSE
    /\ record = [v \in Validators |-> None]
    /\ said = [v \in Validators |-> {}]
    /\ slashed = [v \in Validators |-> 0]

--------------------------------------------------------------------------------
(* The honest validator. *)

(* What it sees now may differ from what it saw before a crash: its network does. What is on its disk it keeps to. *)
Look ==
    /\ mind = None
    /\ IF disk /= None THEN mind' = disk ELSE mind' \in Values
    /\ UNCHANGED <<disk, sent, bound, record, said, slashed, over>>

Seal ==
    /\ Signs = "sealed" /\ mind /= None /\ disk = None
    /\ disk' = mind
    /\ UNCHANGED <<mind, sent, bound, record, said, slashed, over>>

Crash ==
    /\ mind /= None
    /\ mind' = None
    /\ UNCHANGED <<disk, sent, bound, record, said, slashed, over>>

Send ==
    /\ mind /= None /\ ~over
    /\ Signs = "sealed" => disk = mind
    /\ sent' = sent \union {mind}
    /\ UNCHANGED <<mind, disk, bound, record, said, slashed, over>>

(* A call that was sent is included now, later or never, and only the first one counts. *)
Include ==
    /\ ~over /\ record["honest"] = None
    /\ \E value \in sent : record' = [record EXCEPT !["honest"] = value]
    /\ UNCHANGED <<mind, disk, sent, bound, said, slashed, over>>

Sign ==
    LET signed == CASE Signs = "sealed" -> {disk} [] Signs = "recorded" -> {record["honest"]} [] Signs = "remembered" -> {mind}
    IN  /\ said' = [said EXCEPT !["honest"] = @ \union (signed \ {None})]
        /\ UNCHANGED <<mind, disk, sent, bound, record, slashed, over>>

--------------------------------------------------------------------------------
(* The dishonest one. *)

SignAnything ==
    /\ \E value \in Values : said' = [said EXCEPT !["crook"] = @ \union {value}]
    /\ UNCHANGED <<mind, disk, sent, bound, record, slashed, over>>

Bind ==
    /\ ~over /\ bound = None
    /\ bound' \in Values
    /\ UNCHANGED <<mind, disk, sent, record, said, slashed, over>>

Show ==
    /\ ~over /\ bound /= None /\ record["crook"] = None
    /\ record' = [record EXCEPT !["crook"] = bound]
    /\ UNCHANGED <<mind, disk, sent, bound, said, slashed, over>>

End ==
    /\ ~over /\ over' = TRUE
    /\ UNCHANGED <<mind, disk, sent, bound, record, said, slashed>>

--------------------------------------------------------------------------------
(* Any account reports any validator, with any statements: the chain asks whether the accused signed them, and whether they differ from each
   other, or from what it put on the chain itself. Each matter is punished once. *)

IsProof(accused, one, other) == one /= other /\ {one, other} \subseteq said[accused]
Contradicts(accused, one) == one \in said[accused] /\ record[accused] /= None /\ record[accused] /= one

Report(accused) ==
    /\ slashed[accused] = 0
    /\ \E one, other \in Values : IsProof(accused, one, other) \/ Contradicts(accused, one)
    /\ slashed' = [slashed EXCEPT ![accused] = @ + 1]
    /\ UNCHANGED <<mind, disk, sent, bound, record, said, over>>

Next ==
    \/ Look \/ Seal \/ Crash \/ Send \/ Include \/ Sign
    \/ SignAnything \/ Bind \/ Show \/ End
    \/ \E accused \in Validators : Report(accused)

Spec == Init /\ [][Next]_state

--------------------------------------------------------------------------------
(* Nothing that an honest validator can meet with convicts it. *)
PROT_21_no_honest_conviction == ~ENABLED Report("honest") /\ slashed["honest"] = 0

(* Two different things said, or one that is not what is on the chain, are proof enough, as long as the window is kept. *)
PROT_21_two_faces_are_provable ==
    \A v \in Validators :
        Cardinality(said[v]) > 1 \/ (record[v] /= None /\ said[v] \ {record[v]} /= {}) => ENABLED Report(v) \/ slashed[v] = 1

PROT_21_once == \A v \in Validators : slashed[v] <= 1

Never_convicted == slashed["crook"] = 0
(* What is not covered: to say one thing, bind another, and never show it. It does not count, and costs nothing. *)
Never_a_lie_without_a_proof == ~(over /\ bound /= None /\ said["crook"] \ {bound} /= {} /\ ~ENABLED Report("crook") /\ slashed["crook"] = 0)
================================================================================
