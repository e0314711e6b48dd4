"""mongosh as a person uses it, at a terminal: terminal.py PORT USER PASSWORD MONGOSH HOME."""

import os
import pty
import re
import select
import signal
import sys
import time
from urllib.parse import quote

port, user, password, mongosh, home = sys.argv[1:6]
uri = f"mongodb://{user}:{quote(password)}@127.0.0.1:{port}/shop?serverSelectionTimeoutMS=20000"
PROMPT = re.compile(r"shop> $")
PATIENCE = 60
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>78]|\x07")


class Terminal:
    """A program at a pseudo-terminal."""

    def __init__(self, program, *arguments):
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.environ.update(HOME=home, TERM="dumb", NO_COLOR="1", COLUMNS="200")
            os.execv(program, [program, *arguments])
        self.shown = ""

    def shows(self, pattern, seconds):
        """True if the pattern matches within this time what is shown."""
        until = time.monotonic() + seconds
        while not pattern.search(CONTROL.sub("", self.shown)):
            if time.monotonic() > until:
                return False
            if select.select([self.end], [], [], 0.2)[0]:
                self.shown += os.read(self.end, 65536).decode(errors="replace")
        return True

    def read(self, pattern):
        """What is shown up to the end of the pattern's first match."""
        assert self.shows(pattern, PATIENCE), f"waits for {pattern.pattern}: {self.shown[-2000:]!r}"
        shown = CONTROL.sub("", self.shown)
        end = pattern.search(shown).end()
        self.shown = shown[end:]
        return shown[:end]

    def type(self, text):
        os.write(self.end, text.encode())

    def run(self, line, *wanted, prompt=PROMPT):
        """Types a line; what is shown before the next prompt has all of `wanted`."""
        self.type(line + "\r")
        # The prompt is drawn anew with each key: the one that counts comes after the line's end.
        self.read(re.compile(r"\n"))
        shown = self.read(prompt)
        for part in wanted:
            assert part in shown, (line, part, shown)
        return shown


shell = Terminal(mongosh, uri, "--quiet")
shell.read(PROMPT)
shell.run("db.items.insertMany([...Array(60).keys()].map(n => ({_id: n, n: n})))", "acknowledged: true")
shell.run("show dbs", "shop")
shell.run("show collections", "items")
shown = shell.run("db.items.find()", "Type \"it\" for more")
assert "_id: 19" in shown and "_id: 20" not in shown, shown
shown = shell.run("it", "_id: 20", "_id: 39")
shown = shell.run("it", "_id: 59")
assert "Type" not in shown, shown
shell.run("it", "no cursor")
# A function of several lines.
shell.type("function total(name) {\r")
shell.read(re.compile(r"\.\.\. $|\| $"))
shell.type("  return db[name].aggregate([{$group: {_id: null, n: {$sum: '$n'}}}]).next().n;\r")
shell.read(re.compile(r"\.\.\. $|\| $"))
shell.run("}", "Function: total")
shell.run("total('items')", "1770")
shell.run("db.items.insertOne({_id: 3})", "E11000 duplicate key error")
shell.run("use other", "switched to db other", prompt=re.compile(r"other> $"))
shell.run("use shop", "switched to db shop")
# Control-C ends a find that takes minutes, at the router, too. The shell goes on.
shell.run("inner = {$size: {$map: {input: {$range: [0, 10000]}, in: {$add: ['$$this', 1]}}}}", "$range")
shell.run("slow = {$size: {$map: {input: {$range: [0, 100000]}, in: inner}}}", "$range")
shell.type("db.items.find({$expr: {$gt: [slow, 0]}})\r")
print("runs", flush=True)
assert sys.stdin.readline()
shell.type("\x03")
shell.read(PROMPT)
print("interrupted", flush=True)
# What is typed while the shell still connects anew is ended, too.
answered = re.compile(r"\ngoes on\r*\n.*shop> $", re.DOTALL)
for _ in range(30):
    shell.type("print('goes' + ' on')\r")
    if shell.shows(answered, 2):
        break
shell.read(answered)
shell.run("db.items.countDocuments()", "60")
shell.run("db.items.drop()", "true")
shell.type("exit\r")
until = time.monotonic() + PATIENCE
while os.waitpid(shell.pid, os.WNOHANG)[0] == 0:
    if time.monotonic() > until:
        os.kill(shell.pid, signal.SIGKILL)
        raise AssertionError("it does not end")
    if select.select([shell.end], [], [], 0.2)[0]:
        try:
            os.read(shell.end, 65536)
        except OSError:
            pass
print("done", flush=True)
