"""Senders other than DCQCN by their published rules, in plain Python on one flow.

Times are absolute and windows are windows, where the package counts down and paces.
"""

from __future__ import annotations

import math

from senders import BASE_RTT


class Twin:
    """One flow. `step` takes the time at the end of a substep and what was heard in it (a dict)."""

    rate = window = math.nan

    def __init__(self, k, line):
        self.k, self.line, self.bdp = k, line, line * BASE_RTT
        self.blocked_until = 0.0
        self.begin()

    def limits(self, window, h):
        """RFC 7661: a window may grow if the NIC could use more than it in a round trip."""
        return window < self.line * max(h["rtt"], h["base_rtt"])

    def seen(self):
        return [self.rate, self.window]


class DctcpTwin(Twin):
    """SIGCOMM'10: alpha per round trip, one cut per round trip; slow start until the first mark."""

    paced = False

    def begin(self):
        self.window = self.k.initial or self.bdp
        if self.paced:
            self.window = min(self.window, self.bdp)
        self.alpha, self.marks, self.acks, self.rounds = self.k.alpha_init, 0.0, 0.0, 0
        self.slow_start = not self.paced
        self.rate = self.line * self.window / self.bdp if self.paced else self.line

    def step(self, now, h):
        self.acks += h["acked"]
        self.marks += h["marked"]
        quiet = now >= self.blocked_until
        if h["returned"]:
            self.rounds += 1
            if self.rounds > 1:
                fraction = self.marks / self.acks if self.acks else 0.0
                self.alpha = (1 - self.k.g) * self.alpha + self.k.g * fraction
            self.marks = self.acks = 0.0
        if h["marked"] > 0 and quiet:
            self.window *= 1 - self.alpha / 2
            self.blocked_until = now + max(h["rtt"], h["base_rtt"])
            self.slow_start = False
        elif self.slow_start:
            if self.limits(self.window / 2, h):
                self.window += 1000 * h["acked"]
        elif h["returned"] and self.rounds > 1 and quiet:
            if self.paced:
                self.window = min(
                    self.window + self.k.ai_rate * BASE_RTT + self.k.ai_bytes, self.bdp
                )
            elif self.limits(self.window, h):
                self.window += self.k.ai_bytes + self.k.ai_rate * BASE_RTT
        self.window = max(self.window, self.k.least, self.k.min_rate * BASE_RTT)
        if self.paced:
            self.rate = self.line * self.window / self.bdp

    def seen(self):
        return [self.rate, self.window, self.alpha, self.slow_start]


class PacedDctcpTwin(DctcpTwin):
    paced = True


class TimelyTwin(Twin):
    """SIGCOMM'15, Algorithm 1, with hyper increase."""

    def begin(self):
        self.rate = self.line * self.k.share
        self.previous, self.difference, self.run, self.last = None, 0.0, 0, 0.0

    def step(self, now, h):
        k = self.k
        wait = max(k.segment / self.rate, k.min_rtt) if k.segment else 0.0
        if not h["returned"] or now - self.last < wait:
            return
        self.last, rtt, previous = now, h["rtt"], self.previous
        self.previous = rtt
        if previous is None:
            return
        self.difference = (1 - k.ewma) * self.difference + k.ewma * (rtt - previous)
        up, rate = self.decide(rtt, self.difference / k.min_rtt)
        self.run = self.run + 1 if up else 0
        self.rate = min(max(rate, k.min_rate), self.line)

    def increase(self):
        return self.k.ai if self.run < self.k.patience else self.k.hai

    def decide(self, rtt, gradient):
        k = self.k
        if rtt < k.t_low:
            return True, self.rate + self.increase()
        if rtt > k.t_high:
            return False, self.rate * (1 - k.beta * (1 - k.t_high / rtt))
        if gradient <= 0:
            return True, self.rate + self.increase()
        return False, self.rate * max(1 - k.beta * gradient, 0)

    def seen(self):
        return [self.rate, math.nan, self.difference, self.run]


class PatchedTimelyTwin(TimelyTwin):
    """CoNEXT'16, Algorithm 2: between the thresholds, a mixture by the gradient."""

    def decide(self, rtt, gradient):
        k = self.k
        if rtt < k.t_low or rtt > k.t_high:
            return super().decide(rtt, gradient)
        weight = 0.0 if gradient <= -0.25 else 1.0 if gradient >= 0.25 else 2 * gradient + 0.5
        error = (rtt - k.t_low) / k.t_low
        rate = self.increase() * (1 - weight) + self.rate * (1 - k.beta * weight * error)
        return rate > self.rate, rate


class HpccTwin(Twin):
    """SIGCOMM'19, Algorithm 1, in windows; the first round trip only listens for telemetry."""

    def begin(self):
        self.window = self.reference = self.bdp
        self.rate = self.line
        self.load, self.stage, self.last, self.rounds = 1.0, 0, None, 0

    def step(self, now, h):
        self.rounds += bool(h["returned"])
        new_round = h["returned"] and self.rounds > 1 and self.last is not None
        k, last = self.k, self.last
        if h["acked"] > 0:
            hops = list(zip(h["hop_queue"], h["hop_sent"], h["hop_rate"], strict=True))
            self.last = h["stamp"], hops
        if h["acked"] > 0 and last is not None:
            span = h["stamp"] - last[0]
            use = 0.0
            for (queue, sent, rate), (queue0, sent0, _) in zip(hops, last[1], strict=True):
                transmitted = (int(sent) - int(sent0)) % 2**32 / span
                use = max(use, min(queue, queue0) / (rate * BASE_RTT) + transmitted / rate)
            part = min(span, BASE_RTT) / BASE_RTT
            self.load = (1 - part) * self.load + part * use
        multiply = self.load >= k.eta or self.stage >= k.max_stage
        if h["acked"] > 0 and last is not None:
            window = self.reference / (self.load / k.eta) if multiply else self.reference
            low = min(k.min_rate, self.line) * BASE_RTT
            self.window = min(max(window + k.ai * BASE_RTT, low), self.bdp)
        if new_round:
            self.reference = self.window
            self.stage = 0 if multiply else self.stage + 1
        self.rate = self.window / BASE_RTT

    def seen(self):
        return [self.rate, self.window, self.load, self.stage]


class SwiftTwin(Twin):
    """SIGCOMM'20, Algorithm 1 (without the fast-recovery and pacing-timer parts)."""

    def begin(self):
        self.cwnd, self.rtt = self.bdp / 1000, BASE_RTT
        self.show()

    def show(self):
        self.window = 1000 * max(self.cwnd, 1.0)
        self.rate = min(1000 * self.cwnd / self.rtt, self.line) if self.cwnd < 1 else self.line

    def target(self, hops):
        k = self.k
        alpha = k.fs_range / (1 / math.sqrt(k.fs_min) - 1 / math.sqrt(k.fs_max))
        scaling = alpha / math.sqrt(self.cwnd) - alpha / math.sqrt(k.fs_max)
        return k.base + hops * k.per_hop + min(max(scaling, 0.0), k.fs_range)

    def step(self, now, h):
        k = self.k
        if h["rtt"] <= 0:
            return
        self.rtt = delay = h["rtt"]
        target = self.target(h["n_hops"])
        if delay < target:
            if self.limits(1000 * self.cwnd, h):
                self.cwnd += k.ai / self.cwnd * h["acked"] if self.cwnd >= 1 else k.ai * h["acked"]
        elif h["acked"] > 0 and now >= self.blocked_until:
            self.cwnd *= max(1 - k.beta * (delay - target) / delay, 1 - k.max_cut)
            self.blocked_until = now + delay
        self.cwnd = max(self.cwnd, k.least)
        self.show()


class RenoTwin(Twin):
    """RFC 5681 without timeouts: losses are noticed once per round trip."""

    def begin(self):
        self.window, self.rate, self.slow_start = self.k.initial, self.line, True

    def step(self, now, h):
        quiet = now >= self.blocked_until
        if h["lost"] > 0 and quiet:
            self.window = max(self.window * self.k.keep, 2000)
            self.blocked_until = now + max(h["rtt"], h["base_rtt"])
            self.slow_start = False
        elif self.slow_start:
            if self.limits(self.window / 2, h):
                self.window += 1000 * h["acked"]
        elif h["returned"] and quiet and self.limits(self.window, h):
            self.window += self.k.ai_bytes

    def seen(self):
        return [self.rate, self.window, self.slow_start]


class AgentTwin(Twin):
    """The rate is multiplied when a round trip ends."""

    factor = 0.9

    def begin(self):
        self.rate, self.inflation, self.rounds = self.line * self.k.share, 1.0, 0

    def step(self, now, h):
        if h["returned"]:
            self.rate = min(max(self.rate * self.factor, self.k.min_rate), self.line)
            self.inflation, self.rounds = h["rtt"] / h["base_rtt"], self.rounds + 1

    def seen(self):
        return [self.rate, math.nan, self.inflation, self.rounds]


TWINS = {
    "dctcp:sigcomm10": (DctcpTwin, ("alpha", "slow_start")),
    "dctcp:hpcc": (PacedDctcpTwin, ("alpha", "slow_start")),
    "timely:hpcc": (TimelyTwin, ("slope", "raises")),
    "timely:conext16": (TimelyTwin, ("slope", "raises")),
    "timely:patched": (PatchedTimelyTwin, ("slope", "raises")),
    "hpcc:hpcc": (HpccTwin, ("load", "stage")),
    "hpcc:sigcomm19": (HpccTwin, ("load", "stage")),
    "swift:htsim": (SwiftTwin, ()),
    "reno:rfc5681": (RenoTwin, ("slow_start",)),
    "rate-agent:line-rate": (AgentTwin, ("inflation", "rounds")),
}
"""Short form: the twin, and what else of the state is compared."""
