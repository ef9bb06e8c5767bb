"""The consumer's side of its group: membership, heartbeats, assignors, commits.

Who calls whom, from the user down:

    ConsumerGroup       what subscribe, poll, commit and close make of the group (`consumer_group`)
      Rebalance         the steps that a rebalance has the caller of poll do, as parts of scripts (`rebalance`)
      Committer         the queue of commits, and the task that sends them one by one (`committer`)
        AutoCommit      when positions are due (`auto_commit`)
      CommittedLookup  fetches what was committed (`committed`)
        CoordinatorAccess  waits until the coordinator is known, and takes in how it did (`coordinator`)
      Membership        the membership, a state machine without I/O or clock, by one of two protocols (`membership`)

    GroupDriver         the task that sends what the member asks for, when it is due (`driver`)
      GroupMember       by the classic protocol, in which the members assign the partitions (`member`)
        CoordinatorLookup      which broker coordinates the group (`coordinator_lookup`)
        GroupLeader            what a member knows while it leads: who subscribes to what (`leader`)
        Holding                the partitions that it reads, and whether others may already (`holding`)
        Heartbeats, PollTimer  when heartbeats are due, and when time is over (`timers`)
        Errand                 something that is to be sent once (`errand`)
        GroupRequests          makes the requests (`requests`), with what members tell each other (`consumer_protocol`)
      RemoteMember      by the protocol in which the broker does (`remote_member`)
        CoordinatorLookup, Holding, PollTimer, Errand  as above
        RemoteHeartbeats       when heartbeats are due (`timers`)
        AssignmentTarget       what the broker assigns, and whose names are known (`target`, `topic_names`)
        RemoteRequests         makes the requests (`remote_requests`)

A `Membership` is told of events (a poll, an answer, time) and gives out requests (`next`), which `GroupDriver` sends,
and steps (`step`), which `Rebalance` carries out in the user's task or thread. `states` and `remote_states` have the
tables of states, `model` the values that go to and fro, `refusals` the errors, `offsets` the requests about offsets.
`assignors` are what the leader divides partitions with; users may write their own.

The consumer above puts these parts together (`kclient.consumer.core`) and lends them what both rooms share: the lock
that guards the state machines, the subscription and positions, the cluster. This room does not know `fetch`: what it
has to say about partitions goes through `AssignedPartitions`, a protocol in `rebalance`.
"""
