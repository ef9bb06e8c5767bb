import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Repartitioned;

/**
 * Counts words with Kafka Streams, exactly once, and prints each state that it comes into.
 *
 * Reads lines of words from NAME-lines and the kind of each word from NAME-kinds. Writes each word with its place and kind
 * to NAME-joined, and how often the word, and the kind, has come up to then to NAME-words and NAME-counts: a record for
 * each time. What it is given as arguments is NAME, the folder of its state, and settings as KEY=VALUE. It ends with 1 when
 * an error ends a thread that is none of its transactions' time.
 */
public final class WordsStreams {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("application.id", arguments[0]);
        settings.put("state.dir", arguments[1]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("statestore.cache.max.bytes", 0);  // or counts would be left out
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        for (int index = 2; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        CountDownLatch ended = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology(arguments[0]).build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            // what brokers answer to a commit after transaction.timeout.ms since KIP-890, and Streams takes for a mistake
            return error.getCause() instanceof InvalidTxnStateException
                ? StreamThreadExceptionResponse.REPLACE_THREAD : StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            if (now == KafkaStreams.State.ERROR || now == KafkaStreams.State.NOT_RUNNING)
                ended.countDown();
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        ended.await();
        if (streams.state() == KafkaStreams.State.ERROR)
            Runtime.getRuntime().halt(1);
    }

    private static StreamsBuilder topology(String name) {
        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, String> kinds = builder.table(name + "-kinds");
        KStream<String, String> lines = builder.stream(name + "-lines");
        KStream<String, String> joined = lines
            .flatMap(WordsStreams::words)
            .repartition(Repartitioned.as("by-word"))
            .join(kinds, (place, kind) -> place + " " + kind);
        joined.to(name + "-joined");
        joined.groupByKey()
            .count(Materialized.as("words"))
            .toStream().mapValues(count -> Long.toString(count)).to(name + "-words");
        joined.groupBy((word, found) -> found.split(" ")[1], Grouped.as("by-kind"))
            .count(Materialized.as("kinds"))
            .toStream().mapValues(count -> Long.toString(count)).to(name + "-counts");
        return builder;
    }

    /** Each word of a line, and as value where it is: the line's key and the word's number. */
    private static List<KeyValue<String, String>> words(String key, String line) {
        List<KeyValue<String, String>> found = new ArrayList<>();
        for (String word : line.split(" "))
            found.add(new KeyValue<>(word, key + ":" + found.size()));
        return found;
    }
}
