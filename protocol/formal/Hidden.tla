--------------------------------- MODULE Hidden --------------------------------
(* Whether a lazy validator can post what another found out, without the work (PROT-30): an attestation, or a vote. Bound by a hash
   before the deadline, shown after it; what is bound is also on show elsewhere, in the bucket of the validator that found it out (PROT-15,
   `validator/src/aggregator.rs`): contributions that it attests, an update that it votes. Everybody can read an object whose name
   they know, and no reader can list (PROT-12, ADR 0005). *)
EXTENDS Naturals

CONSTANTS
    None,
    Hides,          \* whether the run hides attestations and votes
    NamesTheKey,    \* whether the hash that is bound covers the hotkey of the account that binds it (`protocol::reveal`)
    NameIsKnown,    \* whether the object's name is public: a contribution's is, by its commitment; an update's is not before it is shown
    PutsFirst       \* whether the diligent put the object into their bucket before they bind, or before they show

VARIABLES
    phase,          \* "bind" until the deadline, "show" after it, "over"
    isThere,        \* whether the object is in the diligent validator's bucket
    bound, shown    \* of each validator, on the chain

state == <<phase, isThere, bound, shown>>

(* "found" is what comes of the work. "guess" is anything else, "copy" the other's hash, letter by letter. *)
Validators == {"diligent", "lazy"}

Init ==
    /\ phase = "bind"
    /\ isThere = FALSE
    /\ bound = [v \in Validators |-> None]
    /\ shown = [v \in Validators |-> None]

(* What the lazy one can know by now. To ask for an object costs nothing but the question. *)
Knows == shown["diligent"] = "found" \/ (isThere /\ NameIsKnown)

Put ==
    /\ ~isThere
    /\ phase = "show" \/ (phase = "bind" /\ PutsFirst)
    /\ isThere' = TRUE
    /\ UNCHANGED <<phase, bound, shown>>

Bind ==
    /\ phase = "bind"
    /\ bound["diligent"] = None
    /\ PutsFirst => isThere
    /\ bound' = [bound EXCEPT !["diligent"] = "found"]
    /\ shown' = IF Hides THEN shown ELSE [shown EXCEPT !["diligent"] = "found"]
    /\ UNCHANGED <<phase, isThere>>

(* Where others cannot have it of us, we do not show that we have it: then it does not count. *)
Show ==
    /\ phase = "show"
    /\ bound["diligent"] = "found"
    /\ isThere
    /\ shown' = [shown EXCEPT !["diligent"] = "found"]
    /\ UNCHANGED <<phase, isThere, bound>>

BindLazily ==
    /\ phase = "bind"
    /\ bound["lazy"] = None
    /\ \E what \in {"guess"} \union (IF Knows THEN {"found"} ELSE {}) \union (IF bound["diligent"] /= None /\ Hides THEN {"copy"} ELSE {}) :
        /\ bound' = [bound EXCEPT !["lazy"] = what]
        /\ shown' = IF Hides THEN shown ELSE [shown EXCEPT !["lazy"] = what]
    /\ UNCHANGED <<phase, isThere>>

(* The chain takes what fits the hash and the key that bound it. The other's hash fits what the other has shown, salt and all. *)
ShowLazily ==
    /\ phase = "show"
    /\ shown["lazy"] = None
    /\ \/ bound["lazy"] \in {"guess", "found"} /\ shown' = [shown EXCEPT !["lazy"] = bound["lazy"]]
       \/ bound["lazy"] = "copy" /\ ~NamesTheKey /\ shown["diligent"] = "found" /\ shown' = [shown EXCEPT !["lazy"] = "found"]
    /\ UNCHANGED <<phase, isThere, bound>>

End ==
    /\ phase /= "over"
    /\ phase' = IF phase = "bind" THEN "show" ELSE "over"
    /\ UNCHANGED <<isThere, bound, shown>>

Next == Put \/ Bind \/ Show \/ BindLazily \/ ShowLazily \/ End

Spec == Init /\ [][Next]_state

--------------------------------------------------------------------------------
(* No participant posts what it did not find out itself. *)
PROT_30_nothing_is_copied == shown["lazy"] /= "found"

(* What counts is there for others to fetch, once all is shown. *)
PROT_15_shown_is_served == Hides /\ shown["diligent"] = "found" => isThere

Never_shown == shown["diligent"] = None
================================================================================
