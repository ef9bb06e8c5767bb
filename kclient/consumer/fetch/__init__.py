"""Fetching: what to ask which broker, what was fetched, and where reading begins.

Who calls whom, from the user down:

    FetchCollector      hands records or columns out, decoded in the caller's thread (`collector`)
      Interception      what interceptors make of them (`interception`)
      Fetcher           plans fetches and takes answers in, without I/O or clock (`fetcher`)
        CompletedFetch  what one fetch brought of one partition (`completed_fetch`)
    FetchControl        assigns, seeks, pauses: moves positions, and has what was fetched follow (`control`)
      Fetcher
    OffsetQueries       offsets by time, partitions of a topic: questions of the user (`offset_queries`)
      OffsetSearch      what to ask which leader, and what was found (`list_offsets`)

    FetchDriver         the task that sends what is due (`driver`)
      Fetcher
        FetchBudget          how many bytes a broker may be asked for (`budget`)
        FetchSessionHandler  sends only what changed since the last request (`session`)
      PositionFinder    committed offsets, and what `auto.offset.reset` leads to (`positions`)

The positions themselves are in `kclient.consumer.partition_state` and `subscription`, which both rooms share; the lock
that guards them is held for moments only, never while waiting or decoding. Each change that may make a fetch due sets
the `Wakeup` of the driver's task. This room does not know `group`: where committed offsets come from is a protocol in
`positions`.
"""
