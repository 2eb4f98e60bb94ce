"""PROT-31, written from the text of protocol/spec/consensus.md alone.

Reads one case per line of JSON and prints one result per line. A case is a list of ballots: `uid`, `stake` (a decimal
string), `weights` and `bonds` (lists of [uid, number]) and `earns`.
"""

import json
import sys

ONE = 4294967296
STAKE_BITS = 46
BOND_EPOCHS = 10


def lowest(entries):
    """Of two entries for one seat the lower counts, then zeros are dropped."""
    by_seat = {}
    for seat, value in entries:
        by_seat[seat] = min(value, by_seat.get(seat, value))
    return {seat: value for seat, value in by_seat.items() if value > 0}


def shares(amounts):
    """Parts of ONE, in proportion to `amounts` by uid, which add up to ONE."""
    total = sum(amounts.values())
    if total == 0:
        return {}
    parts = {uid: amount * ONE // total for uid, amount in amounts.items()}
    missing = ONE - sum(parts.values())
    by_remainder = sorted(amounts, key=lambda uid: (-(amounts[uid] * ONE % total), uid))
    for uid in by_remainder[:missing]:
        parts[uid] += 1
    return parts


def consensus(ballots):
    """The output of PROT-31; None without a consensus."""
    # Step 1.
    ballots = sorted(ballots, key=lambda b: (b["uid"], int(b["stake"]), b["weights"], b["bonds"], b["earns"]))
    first = {}
    for ballot in ballots:
        first.setdefault(ballot["uid"], ballot)
    uids = sorted(first)
    given = {i: lowest(first[i]["weights"]) for i in uids}
    held = {i: lowest(first[i]["bonds"]) for i in uids}
    earns = {i: min(first[i]["earns"], ONE) for i in uids}
    # Step 2.
    stakes = {i: int(first[i]["stake"]) for i in uids}
    shift = max(0, max(stakes.values(), default=0).bit_length() - STAKE_BITS)
    stakes = {i: stake >> shift for i, stake in stakes.items()}
    total = sum(stakes.values())
    # Step 3.
    weights = {i: {j: w * ONE // sum(row.values()) for j, w in row.items()} for i, row in given.items()}
    # Step 4.
    seats = sorted({seat for row in [*weights.values(), *held.values()] for seat in row})
    agreed, trust, bonds, stands = {}, {}, {i: {} for i in uids}, {i: 0 for i in uids}
    for j in seats:
        column = {i: weights[i].get(j, 0) for i in uids}
        enough = [w for w in column.values() if sum(stakes[k] for k in uids if column[k] >= w) > total // 2]
        agreed[j] = max(enough, default=0)
        for i in uids:
            clipped = min(column[i], agreed[j])
            stands[i] += clipped
            new = stakes[i] * clipped // max(total, 1)
            bonds[i][j] = ((BOND_EPOCHS - 1) * held[i].get(j, 0) + new) // BOND_EPOCHS
        if agreed[j] > 0:
            stood = sum(stakes[i] * min(column[i], agreed[j]) for i in uids)
            trust[j] = stood * ONE // sum(stakes[i] * column[i] for i in uids)
    # Step 5.
    agreed = {j: weight for j, weight in agreed.items() if weight > 0}
    if not agreed:
        return None
    # Step 6.
    incentive = shares(agreed)
    earned = {}
    for i in uids:
        if weights[i]:
            parts = 0
            for j, share in incentive.items():
                bonded = sum(bonds[k][j] for k in uids)
                if share > 0 and bonded > 0:
                    parts += bonds[i][j] * ONE * share // bonded
            earned[i] = parts * earns[i] // ONE
    # Step 7.
    highest = max(agreed.values())
    scaled = {j: max(1, (weight * 65535 + highest // 2) // highest) for j, weight in agreed.items()}
    rows = [[i, in_order(bonds[i])] for i in uids]
    return {
        "weights": in_order(scaled),
        "incentive": in_order(incentive),
        "trust": in_order(trust),
        "dividends": in_order(shares(earned)),
        "validator_trust": in_order(stands),
        "bonds": [row for row in rows if row[1]],
    }


def in_order(numbers):
    """In uid order, without zeros."""
    return [[uid, number] for uid, number in sorted(numbers.items()) if number > 0]


for line in sys.stdin:
    print(json.dumps(consensus(json.loads(line))))
