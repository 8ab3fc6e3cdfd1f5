"""What all devices have in common: one time, and one of each thing.

A device has a :class:`~sw_driver.device.clock.Domain`, in whose cycles its transport tells the
time. What it does is a generator that yields where others may come first and keeps ``domain.now``;
a :class:`~sw_driver.device.streams.Handle` stands for it, and
:func:`~sw_driver.device.streams.perform` carries it out or queues it in a
:class:`~sw_driver.device.streams.Stream`, within one call of the clock (``with domain.clock``).
What several operations share is a :class:`~sw_driver.device.link.Link`, and what one has for itself
an :class:`~sw_driver.device.clock.Exclusive`. Registers have their names from a
:class:`~sw_driver.device.registers.RegisterWindow`, memory its pointers and its free list from
:mod:`~sw_driver.device.memory`.
"""
