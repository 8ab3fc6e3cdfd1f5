"""Parts that all devices share: simulated time, operations, links, registers and memory.

A device tells time in the cycles of its :class:`~sw_driver.device.clock.Domain`. An operation is a
generator. It keeps ``domain.now`` and yields where others may run first. A
:class:`~sw_driver.device.streams.Handle` stands for the operation.
:func:`~sw_driver.device.streams.perform` carries it out, or queues it in a
:class:`~sw_driver.device.streams.Stream`, within one call of the clock (``with domain.clock``).
Operations share a :class:`~sw_driver.device.link.ReservedLink`; only one at a time holds an
:class:`~sw_driver.device.clock.Exclusive`. A :class:`~sw_driver.device.registers.RegisterWindow`
names registers. :mod:`~sw_driver.device.memory` has the pointers and free lists of memories.
"""
