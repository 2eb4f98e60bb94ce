--------------------------------- MODULE Seats ---------------------------------
(* Money over several epochs: validators' seats that change hands, the stake that counts, slashes and pay (PROT-3, 21, 29, 32).
   Calls and tasks are those of `contracts/registry`, `contracts/windows` (`active_set.rs`, `permits.rs`) and `contracts/rewards`.
   Each account registers once: a hotkey is used once in a run. Every account may do all that the rules allow; `First` holds the
   seats as the run begins, the others come with money of their own. Amounts are whole units. *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    First, Others,      \* accounts
    StakeFirst,         \* staked by each of First at the start
    Money,              \* free units of each of Others at the start
    Amounts,            \* what one call stakes
    SeatsMax, Price,
    EpochWindows, EpochsMax,
    Emission, Treasury,
    SlashPerTen,        \* tenths of a stake that a conviction takes. A tenth of them is the reporter's
    Rules               \* a rule that is not in this set is taken out: "budget", "tombstone", "merged", "from-slash"

Accounts == First \union Others

VARIABLES
    free, stake, unbonding,     \* units of each account
    seated,                     \* the holders of seats
    former,                     \* accounts that gave up or lost their seat
    base,                       \* the established stake: what counted in the last window of the epoch before
    counted,                    \* the stake that counts in this window
    window, epoch,              \* window of the epoch, from 1
    merged,                     \* merged windows of this epoch
    convicted, slashes,         \* offenders with a proof against them, and how often each was slashed
    treasury, burnt,
    paid                        \* by the epoch that was closed last: pay, and its merged windows

state == <<free, stake, unbonding, seated, former, base, counted, window, epoch, merged, convicted, slashes, treasury, burnt, paid>>

RECURSIVE Sum(_, _)
Sum(of, accounts) == IF accounts = {} THEN 0 ELSE LET one == CHOOSE a \in accounts : TRUE IN of[one] + Sum(of, accounts \ {one})
Least(one, other) == IF one < other THEN one ELSE other

(* PROT-3: established stake counts in full. New stake shares a budget of a tenth of it per window, at most three tenths in an epoch. *)
Counted(members, staked, established, at) ==
    LET old == [a \in Accounts |-> IF a \in members THEN Least(staked[a], established[a]) ELSE 0]
        new == [a \in Accounts |-> IF a \in members THEN staked[a] - old[a] ELSE 0]
        all == Sum(new, Accounts)
        budget == (Sum(old, Accounts) * Least(at, 3)) \div 10
        full == "budget" \notin Rules \/ Sum(old, Accounts) = 0 \/ all <= budget
    IN  [a \in Accounts |-> IF full THEN old[a] + new[a] ELSE old[a] + (new[a] * budget) \div all]

Init ==
    /\ free = [a \in Accounts |-> IF a \in Others THEN Money ELSE 0]
    /\ stake = [a \in Accounts |-> IF a \in First THEN StakeFirst ELSE 0]
    /\ unbonding = [a \in Accounts |-> 0]
    /\ seated = First /\ former = {}
    /\ base = stake /\ counted = stake
    /\ window = 1 /\ epoch = 0 /\ merged = 0
    /\ convicted = {} /\ slashes = [a \in Accounts |-> 0]
    /\ treasury = Treasury /\ burnt = 0
    /\ paid = [amount |-> 0, merged |-> 0]

--------------------------------------------------------------------------------
(* Calls. *)

CanPay(a, amount) == free[a] >= amount + Price
Hold(a, amount) ==
    /\ free' = [free EXCEPT ![a] = @ - amount - Price]
    /\ burnt' = burnt + Price

Register(a, amount) ==
    /\ a \notin seated \union former /\ Cardinality(seated) < SeatsMax /\ CanPay(a, amount)
    /\ Hold(a, amount)
    /\ stake' = [stake EXCEPT ![a] = amount]
    /\ seated' = seated \union {a}
    /\ UNCHANGED <<unbonding, former, base, counted, window, epoch, merged, convicted, slashes, treasury, paid>>

(* PROT-29: a full role's seat goes to a stake that is larger by a tenth. *)
Replace(a, holder, amount) ==
    /\ a \notin seated \union former /\ Cardinality(seated) = SeatsMax /\ CanPay(a, amount)
    /\ amount * 10 > stake[holder] * 11
    /\ Hold(a, amount)
    /\ stake' = [stake EXCEPT ![a] = amount, ![holder] = 0]
    /\ unbonding' = [unbonding EXCEPT ![holder] = @ + stake[holder]]
    /\ seated' = (seated \ {holder}) \union {a}
    /\ former' = former \union {holder}
    /\ UNCHANGED <<base, counted, window, epoch, merged, convicted, slashes, treasury, paid>>

AddStake(a, amount) ==
    /\ a \in seated /\ free[a] >= amount
    /\ free' = [free EXCEPT ![a] = @ - amount]
    /\ stake' = [stake EXCEPT ![a] = @ + amount]
    /\ UNCHANGED <<unbonding, seated, former, base, counted, window, epoch, merged, convicted, slashes, treasury, burnt, paid>>

Leave(a) ==
    /\ a \in seated
    /\ seated' = seated \ {a} /\ former' = former \union {a}
    /\ unbonding' = [unbonding EXCEPT ![a] = @ + stake[a]]
    /\ stake' = [stake EXCEPT ![a] = 0]
    /\ UNCHANGED <<free, base, counted, window, epoch, merged, convicted, slashes, treasury, burnt, paid>>

(* After the unbonding time, which is any time here. *)
Withdraw(a) ==
    /\ unbonding[a] > 0
    /\ free' = [free EXCEPT ![a] = @ + unbonding[a]]
    /\ unbonding' = [unbonding EXCEPT ![a] = 0]
    /\ UNCHANGED <<stake, seated, former, base, counted, window, epoch, merged, convicted, slashes, treasury, burnt, paid>>

(* PROT-21: any account reports a proof. The first one takes the slash and ends the seat at the next opening. *)
Report(offender, reporter) ==
    LET taken(units) == (units * SlashPerTen) \div 10
        all == taken(stake[offender]) + taken(unbonding[offender])
        reward == all \div 10
        given == [free EXCEPT ![reporter] = @ + reward]
    IN  /\ offender \in seated \union former /\ offender /= reporter
        /\ "tombstone" \in Rules => offender \notin convicted
        /\ slashes[offender] < 2    \* bounds the model without the rule
        /\ convicted' = convicted \union {offender}
        /\ slashes' = [slashes EXCEPT ![offender] = @ + 1]
        /\ stake' = [stake EXCEPT ![offender] = @ - taken(@)]
        /\ unbonding' = [unbonding EXCEPT ![offender] = @ - taken(@)]
        /\ free' = given
        /\ burnt' = burnt + (IF "from-slash" \in Rules THEN all - reward ELSE all)
        /\ UNCHANGED <<seated, former, base, counted, window, epoch, merged, treasury, paid>>

--------------------------------------------------------------------------------
(* The end of a window, merged or void, and the opening of the next. *)

Tick(isMerged) ==
    LET done == merged + (IF isMerged THEN 1 ELSE 0)
        closes == window = EpochWindows
        stays == seated \ convicted
        kept == [a \in Accounts |-> IF a \in seated \ stays THEN 0 ELSE stake[a]]
        pot == IF "merged" \in Rules THEN (Emission * done) \div EpochWindows ELSE Emission
        pool == Least(pot, treasury)
        all == Sum(counted, Accounts)
        pay == [a \in Accounts |-> IF closes /\ all > 0 THEN (pool * counted[a]) \div all ELSE 0]
    IN  /\ epoch < EpochsMax
        /\ seated' = stays
        /\ former' = former \union (seated \ stays)
        /\ stake' = kept
        /\ unbonding' = [a \in Accounts |-> unbonding[a] + (stake[a] - kept[a])]
        /\ window' = IF closes THEN 1 ELSE window + 1
        /\ epoch' = IF closes THEN epoch + 1 ELSE epoch
        /\ merged' = IF closes THEN 0 ELSE done
        /\ free' = [a \in Accounts |-> free[a] + pay[a]]
        /\ treasury' = treasury - Sum(pay, Accounts)
        /\ paid' = IF closes THEN [amount |-> Sum(pay, Accounts), merged |-> done] ELSE paid
        /\ base' = IF closes THEN counted ELSE base
        /\ counted' = Counted(stays, kept, base', window')
        /\ UNCHANGED <<convicted, slashes, burnt>>

Next ==
    \/ \E a \in Accounts, amount \in Amounts : Register(a, amount) \/ AddStake(a, amount)
    \/ \E a \in Accounts, holder \in seated, amount \in Amounts : Replace(a, holder, amount)
    \/ \E a \in Accounts : Leave(a) \/ Withdraw(a)
    \/ \E a \in Accounts, b \in Accounts : Report(a, b)
    \/ \E isMerged \in BOOLEAN : Tick(isMerged)

Spec == Init /\ [][Next]_state
Alike == Permutations(First) \union Permutations(Others)

--------------------------------------------------------------------------------
(* Of the stake that counts, less than a third is new since the last epoch, while any of the old is there. *)
PROT_3_new_stake_is_below_a_third ==
    LET old == [a \in Accounts |-> Least(counted[a], base[a])]
        new == Sum(counted, Accounts) - Sum(old, Accounts)
    IN  Sum(old, Accounts) > 0 => 3 * new < Sum(counted, Accounts)

PROT_21_one_slash_per_offender == \A a \in Accounts : slashes[a] <= 1

PROT_32_no_pay_without_a_merged_window == paid.merged = 0 => paid.amount = 0

PROT_32_conservation ==
    Sum(free, Accounts) + Sum(stake, Accounts) + Sum(unbonding, Accounts) + treasury + burnt
        = Cardinality(First) * StakeFirst + Cardinality(Others) * Money + Treasury

Never_paid == paid.amount = 0
Never_new_stake == Sum(counted, Others) = 0
Never_convicted == convicted = {}
================================================================================
