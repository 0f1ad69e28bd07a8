"""What follows for a device from how things stand.

Pure, a part of the machine. `plan` says what is to be done now, and when to look again: it changes nothing, and nor do
the questions that it asks of the parts. `conclude` does it, and asks again until nothing follows any more. So a timer
is a result, and is never set.
"""

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules.region import Device, Region
from gms.rules.sessions import Doing
from gms.rules.versions import OtherVersions
from sidecar.machine.plan import Plan, conclude

MOST_ROUNDS = 1000
"""Plans that may follow from one event: more is a circle."""


class Conclusions:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.context = device.context
        self.other_versions = OtherVersions(device.context)
        self.started = False
        """The file was read, and this server's path leads to it."""

    # -- what follows ----------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Each part speaks once those before it have nothing to do. While a question is open its answer comes first."""
        plan, device = Plan(self.context.now, self.context.alarms), self.device
        if device.thrown_out:
            plan.do(self._end_thrown_out)
        elif self.started:
            if not device.why_closed and not device.busy:
                self._plan_next(plan)
            if not plan.steps:
                self._plan_answers(plan)
        return plan

    def _plan_next(self, plan: Plan) -> None:
        device = self.device
        if device.unreadable and not device.window.lasts(plan):
            plan.do(self._window_is_over)
        elif not plan.wait_until(device.file.due_at):
            plan.do(self._write)
        else:
            device.making.plan(plan)
        for region in device.regions.values():
            if plan.steps:
                return
            region.plan(plan)

    def _plan_answers(self, plan: Plan) -> None:
        """What is said to those that wait, and of those that don't answer."""
        for region in self.device.regions.values():
            if not self.device.busy:
                region.plan_time_outs(plan)
            region.plan_dropped(plan)
        self.device.holders.plan(plan)
        if self.device.leases.are_wanted:
            slabs = {region.key: region.leased for region in self.device.regions.values()}
            self.device.leases.plan(plan, slabs, self.device.making.keys)
        self.other_versions.plan(plan)

    # -- what is done ----------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """Everything that follows from how things stand. Raises Circle."""
        self.context.wake(conclude(self.plan, MOST_ROUNDS).again)

    def _window_is_over(self) -> None:
        device = self.device
        device.unreadable = ""
        if device.file.says is not None and device.file.says.unreadable:
            device.file.write_again()

    def _write(self) -> None:
        self.device.file.write(self.device.record())

    # -- connections end -------------------------------------------------------------------------------------------

    def _end_thrown_out(self) -> None:
        thrown_out, self.device.thrown_out = self.device.thrown_out, []
        for conn, problem in thrown_out:
            if problem is not None:
                self.context.send(conn, problem)
            self.end(conn)

    def end(self, conn: int) -> None:
        self.context.out.append(e.Close(conn))
        self.left(conn)

    def left(self, conn: int) -> None:
        device = self.device
        client = device.sessions.clients.get(conn)
        if client is None:
            device.sessions.remove(conn)
            return
        region = device.regions[client.key]
        doing = region.doing(client)
        if client.process is not None and not region.keeps(client.process):
            self.context.out.append(e.ForgetProcess(client.process))
        if doing is not Doing.WATCHING:
            self.context.note("left", region=client.key, engine=client.engine_id, was=doing.value)
        region.hand_backs.left(conn)
        device.holders.remove(conn)
        device.sessions.remove(conn)
        region.left(client, doing)
        if region.is_blank and not device.file.busy and self.may_forget(region):
            self.forget(region)  # what is owed to the disk is that region's to do

    # -- regions without anything ----------------------------------------------------------------------------------

    def may_forget(self, region: Region) -> bool:
        """Its key may be another's. A token is forgotten only for another region, once a person has dropped it."""
        return region.key != m.WEIGHTS and not region.clients and region.may_be_forgotten

    def forget(self, region: Region) -> None:
        region.forget_record_lost()
        del self.device.regions[region.key]
