"""Who says what in a session: a long system prompt, some users, what they ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, TypeAlias

Message: TypeAlias = dict[str, str]
"""``role`` and ``content``, as chat models take them."""

OPENING: Final = "You answer for the harbour library of Tidewick. Be brief, kind and exact."

RULES: Final = (
    "The library stands on the old fish quay and has three floors and a reading garden.",
    "On weekdays the doors open at nine in the morning and close at eight in the evening.",
    "On Saturday the library is open from ten to four, and on Sunday it stays closed.",
    "On public holidays the return box beside the side door is the only thing that works.",
    "A reader's card is free for everybody who lives, works or studies in the town.",
    "Visitors get a card for one month when they show a passport and leave an address.",
    "A card holds up to twelve books, four films and two musical instruments at a time.",
    "Books are lent for four weeks, films for one week, and instruments for three months.",
    "A loan is renewed twice by telephone, on the website or at the desk, unless somebody waits.",
    "Late books cost ten pence a day each, and never more than three pounds altogether.",
    "Children under fourteen pay nothing when they are late, but they are asked to say why.",
    "A lost book is replaced by the same edition or paid for at the price in the catalogue.",
    "The ground floor has novels, poetry, travel, cookery, newspapers and the desk.",
    "The first floor has science, history, the law, languages and forty places to study.",
    "The top floor has maps of the coast, ships' logs and the archive of the lifeboat station.",
    "Logs and maps are read in the map room only, with a pencil and without a drink.",
    "The archivist, Mr Pennock, is there on Tuesday and Thursday from two to five.",
    "Copies of maps are made by the archivist for twenty pence a sheet, within two days.",
    "Six computers on the first floor are free for an hour, and for longer if nobody waits.",
    "The wireless network is called Tidewick Readers and asks for the number of the card.",
    "Printing costs five pence a page in black and twenty pence a page in colour.",
    "The scanner beside the stairs costs nothing and sends what it reads by mail.",
    "Two rooms for groups are booked at the desk, at most a week ahead and for two hours.",
    "The larger room seats ten and has a screen; the smaller one seats four and has a piano.",
    "The piano may be played between noon and two, when nobody studies next door.",
    "Stories for children are read on Wednesday at half past three, in the reading garden.",
    "When it rains the stories move to the small hall, and parents are asked to stay.",
    "The book club meets on the first Monday of the month at seven and needs no booking.",
    "In this month the club reads a novel about the keeper of a lighthouse and his sister.",
    "Chess is played on Friday from five, and boards are lent by the desk until closing.",
    "Books from other libraries of the county arrive within a week and cost one pound each.",
    "Books from abroad take a month, cost eight pounds and are read in the library only.",
    "Readers who can not come are visited by van on the second and fourth Thursday.",
    "The van stops at the school at ten, at the harbour cottages at noon, at the mill at two.",
    "Large print stands to the left of the entrance, and talking books are beside it.",
    "There is a lift to every floor, and the desk keeps a wheelchair and reading glasses.",
    "Dogs that help their owners are welcome; all other dogs wait in the shade by the gate.",
    "The café in the garden is run by volunteers and sells tea, soup and seed cake until three.",
    "Food stays in the café, and drinks with a lid may go anywhere but to the map room.",
    "Telephones are silent indoors, and long calls are made in the garden or on the stairs.",
    "Gifts of books are taken on Monday mornings, no more than two boxes for each giver.",
    "What the library does not need is sold in June, and the money mends the roof.",
    "Lost things are kept at the desk for three months, and umbrellas for a week.",
    "The librarian is Mrs Okafor, and her deputy on Saturdays is young Mr Lind.",
    "Complaints and praise go into the blue box, and each signed note gets an answer.",
    "When the flood bell rings, everybody walks to the top floor and waits for the warden.",
    "If a reader asks for advice on health, law or money, name the right shelf and no more.",
    "If you do not know an answer, say so and give the desk's number, four four one nine.",
    "Never tell one reader what another has borrowed, not even to parents or the police.",
    "Answer in the language of the question, in at most three short sentences.",
)
"""The rules of the house, one a sentence: a system prompt has as many as its length asks for."""

NAMES: Final = ("Ada", "Ben", "Chloe", "Dev", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas")

QUESTIONS: Final = (
    "When are you open on Saturday?",
    "How many books may I take home?",
    "Where do I find the old maps of the coast?",
    "What does it cost to print ten pages?",
    "Is there something for my children this week?",
    "Can I bring my dog with me?",
    "Who do I ask about the logs of the ships?",
    "How long may I keep a film?",
    "Do you have a room with a piano?",
    "What happens when a book is late?",
)

FOLLOW_UP: Final = "Thank you. And what else should I know before I come?"


def system_prompt(length_of: Callable[[str], int], tokens: int, first: int = 0) -> str:
    """Return a system prompt of about `tokens` tokens that begins with rule `first`.

    Prompts that begin with different rules have next to nothing in common as prefixes, and the same
    length but for a sentence. ``length_of`` counts the tokens of a text. Where the rules are fewer
    than are asked for, they come again.
    """
    text = [] if first else [OPENING]
    left = tokens
    for number in count(first):
        left -= length_of(" " + RULES[number % len(RULES)])
        text.append(RULES[number % len(RULES)])
        if left <= 0:
            break
    return " ".join(text)


def name_of(user: int) -> str:
    """Return the name of user number `user`, from 0 on; no two have the same."""
    return NAMES[user] if user < len(NAMES) else f"Reader {user + 1}"


def question(system: str, user: int) -> list[Message]:
    """Return the messages with which a user opens a chat under `system`."""
    asked = QUESTIONS[user % len(QUESTIONS)]
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"My name is {name_of(user)}. {asked}"},
    ]


def follow_up(before: Sequence[Message], answer: str) -> list[Message]:
    """Return the messages of a user's next turn, after `answer`."""
    return [
        *before,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": FOLLOW_UP},
    ]


__all__ = ("Message", "follow_up", "name_of", "question", "system_prompt")
