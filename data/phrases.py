"""The words of the generated problems: people, things, and sentences for every kind of step.

Placeholders: {Name}, {She}/{she}, {Her}/{her} (whose), {them} (her or him), {friend}, {things};
{n} the step's number, {more} "3 more apples", {some} "3 of the apples", {k} a number of groups,
parts or times, {many} "twice as many apples".
"""

from __future__ import annotations

Thing = tuple[str, str]

# fmt: off
_SHE = [
    "Mia", "Emma", "Nora", "Lucy", "Ella", "Maya", "Alice", "Clara", "Ruth", "Hannah", "Priya",
    "Sofia", "Amina", "Rosa", "Ines", "Leila", "Yuki", "Greta", "Zoe", "Tara", "Bella", "Carmen",
    "Dana", "Freya",
]
_HE = [
    "Tom", "Omar", "Lucas", "Noah", "Henry", "Ravi", "Diego", "Jonas", "Peter", "Samir", "Felix",
    "Hugo", "Ivan", "Kenji", "Leo", "Marco", "Nico", "Oscar", "Paul", "Tariq", "Victor", "Ben",
    "Caleb", "Daniel",
]
_THINGS = [
    "apple", "marble", "sticker", "pencil", "seashell", "coin", "button", "cookie", "bead", "stamp",
    "crayon", "orange", "lemon", "muffin", "candle", "postcard", "pebble", "magnet", "notebook",
    "badge", "feather", "ribbon", "walnut", "toy car", "comic book", "trading card", "paper crane",
    "keychain", "bookmark", "tennis ball", "eraser",
]
# fmt: on
NAMES = [(name, "she") for name in _SHE] + [(name, "he") for name in _HE]
THINGS: list[Thing] = [
    *((one, one + "s") for one in _THINGS),
    ("peach", "peaches"),
    ("brush", "brushes"),
    ("berry", "berries"),
    ("puppet", "puppets"),
]

OPENINGS = [
    "{Name} has {n} {things}.",
    "{Name} starts the day with {n} {things}.",
    "{Name} owns {n} {things}.",
    "There are {n} {things} on {Name}'s table.",
    "{Name} keeps {n} {things} in a box.",
    "{Name} has collected {n} {things}.",
    "{Name} counts {n} {things} in {her} room.",
    "{Name} brings {n} {things} to school.",
    "In {her} bag, {Name} has {n} {things}.",
    "{Name} buys {n} {things}.",
    "For {her} birthday, {Name} gets {n} {things}.",
    "{Name} puts {n} {things} in a basket.",
    "{Name} and {her} mother pick out {n} {things} for {them} to keep.",
]

GROUPS = [
    "{Name} has {k} boxes with {n} {things} in each.",
    "{Name} fills {k} bags with {n} {things} each.",
    "{Name} buys {k} packs of {n} {things}.",
    "There are {k} jars on {Name}'s shelf, and each jar holds {n} {things}.",
    "{Name} arranges {her} {things} in {k} rows of {n}.",
    "For {k} days, {Name} collects {n} {things} a day.",
    "{Name} gets {n} {things} from each of {k} friends.",
    "{Name} carries home {k} baskets, each with {n} {things}.",
    "Each of the {k} drawers in {Name}'s desk holds {n} {things}.",
    "{Name} orders {k} crates, and every crate contains {n} {things}.",
    "{Name} lays out {k} trays and puts {n} {things} on each tray.",
    "When {k} cousins visit {Name}, each one brings {them} {n} {things}.",
    "{Name} packs {n} {things} into each of {her} {k} suitcases.",
]

_ADD = [
    "{friend} gives {them} {more}.",
    "Then {she} buys {more} at the market.",
    "On the way home {she} picks up {more}.",
    "{Her} grandfather brings {them} {more}.",
    "{She} wins {more} in a school raffle.",
    "A package with {more} arrives for {them} in the mail.",
    "{She} finds {more} in a bag at home.",
    "{Her} neighbor drops off {more} for {them}.",
    "The next day {she} gets {more} from {friend}.",
    "{She} trades an old game for {more}.",
    "{Her} teacher rewards {them} with {more}.",
    "A cousin hands {them} {more} after lunch.",
    "{She} earns {more} by helping {friend} with homework.",
    "At the fair {she} receives {more}.",
]

_SUB = [
    "{She} gives {some} to {friend}.",
    "Then {she} sells {some} at a yard sale.",
    "{She} loses {some} on the way to school.",
    "{Her} little brother takes {some}.",
    "{She} donates {some} to the class.",
    "{She} trades {some} for a book.",
    "{She} leaves {some} at {friend}'s house.",
    "{She} lets {friend} keep {some}.",
    "{She} mails {some} to {her} aunt.",
    "At the park {she} hands out {some}.",
    "{She} has to throw away {some}.",
    "{She} swaps {some} for a kite.",
    "In the evening {she} passes {some} on to {her} cousin.",
]

_TIMES = [
    "By the end of the week {she} has {many} as before.",
    "{She} keeps collecting until {she} has {many}.",
    "A generous uncle sends enough for {them} to have {many}.",
    "Over the summer the number of {things} grows to {k} times what it was.",
    "{She} goes shopping and comes home with enough to have {many} as before.",
    "At a swap meet {she} trades so well that {she} ends up with {many}.",
    "A month later {she} owns {many}.",
    "With help from {friend}, {she} gathers enough to have {many} as before.",
    "{She} sets {her} heart on having {many} and gets there.",
    "{Her} family surprises {them}, and now {she} has {many}.",
    "A contest prize leaves {them} with {many} as before.",
    "{She} orders enough to have {many} as before.",
]

_SHARE = [
    "{She} shares all of the {things} equally among {k} friends. "
    "How many {things} does each friend get?",
    "{She} packs all of the {things} into {k} boxes with the same number in each. "
    "How many {things} are in each box?",
    "{She} uses up all of the {things} over {k} days, the same number every day. "
    "How many {things} is that per day?",
    "{She} arranges all of the {things} in {k} equal rows. How many {things} are in each row?",
    "{She} divides all of the {things} evenly among {k} cousins. "
    "How many {things} does each cousin receive?",
    "{She} places all of the {things} in {k} jars, the same number in each. "
    "How many {things} does one jar hold?",
    "{She} sorts all of the {things} into {k} equal piles. How many {things} are in one pile?",
    "{She} gives all of the {things} away to {k} classmates, who get the same number each. "
    "How many {things} does one classmate get?",
    "{She} lays all of the {things} out on {k} plates, the same number on each. "
    "How many {things} are on one plate?",
    "{She} fills {k} bags evenly with all of the {things}. How many {things} go in each bag?",
    "{She} hands out all of the {things} evenly at {k} tables. "
    "How many {things} does each table get?",
    "{She} wraps all of the {things} as {k} equal gifts. How many {things} are in each gift?",
]

EVENTS = {"add": _ADD, "sub": _SUB, "times": _TIMES, "share": _SHARE}

QUESTIONS = [
    "How many {things} does {Name} have now?",
    "How many {things} does {she} have in the end?",
    "How many {things} does {Name} end up with?",
    "What is the number of {things} that {Name} has now?",
    "In the end, how many {things} does {Name} have?",
]

# Lines of the solution; {is_} is the annotated calculation.
SOLVED = {
    "groups": [
        "{Name} starts with {is_} {things}.",
        "At first there are {is_} {things}.",
        "That is {is_} {things} to begin with.",
    ],
    "add": [
        "{Name} then has {is_} {things}.",
        "Adding {n} makes {is_} {things}.",
        "With {n} more, that is {is_} {things}.",
    ],
    "sub": [
        "After that, {Name} has {is_} {things} left.",
        "Taking away {n} leaves {is_} {things}.",
        "{Name} is left with {is_} {things}.",
    ],
    "times": [
        "{n} times as many is {is_} {things}.",
        "Multiplying by {n} gives {is_} {things}.",
    ],
    "share": [
        "Each part is {is_} {things}.",
        "Dividing by {n} gives {is_} {things}.",
        "In {n} equal parts, that is {is_} {things} each.",
    ],
}


def words(name: str, pronoun: str, friend: str, thing: Thing) -> dict[str, str]:
    """Values of the placeholders that stay the same through one story."""
    her, them = ("her", "her") if pronoun == "she" else ("his", "him")
    return {
        "Name": name,
        "she": pronoun,
        "She": pronoun.capitalize(),
        "her": her,
        "Her": her.capitalize(),
        "them": them,
        "friend": friend,
        "things": thing[1],
    }


def counted(number: int, thing: Thing) -> dict[str, str | int]:
    """Values of the placeholders that tell the number of one step."""
    one, several = thing
    times = "twice" if number == 2 else f"{number} times"
    return {
        "k": number,
        "more": f"{number} more {one if number == 1 else several}",
        "some": f"{number} of the {several}",
        "many": f"{times} as many {several}",
    }
