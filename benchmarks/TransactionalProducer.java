import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client's rate of producing: sends until the time is over, in transactions if an interval is given.
 *
 * Arguments: the broker's address, the topic, seconds to warm up, seconds to measure, milliseconds from one commit to
 * the next (0: no transactions, only idempotent). Prints records per second and commits per second.
 */
public final class TransactionalProducer {
    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        double warmUp = Double.parseDouble(arguments[2]);
        double seconds = Double.parseDouble(arguments[3]);
        long interval = Long.parseLong(arguments[4]) * 1_000_000L;
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "linger.ms", 5));
        if (interval > 0)
            settings.put("transactional.id", "java-" + System.nanoTime());
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (interval > 0)
                producer.initTransactions();
            run(producer, topic, warmUp, interval);
            long began = System.nanoTime();
            long[] done = run(producer, topic, seconds, interval);
            double took = (System.nanoTime() - began) / 1e9;
            System.out.println(done[0] / took + " " + done[1] / took);
        }
    }

    private static long[] run(KafkaProducer<byte[], byte[]> producer, String topic, double seconds, long interval) {
        byte[] value = "x".repeat(100).getBytes();
        long end = System.nanoTime() + (long) (seconds * 1e9);
        long records = 0;
        long commits = 0;
        while (System.nanoTime() < end) {
            long until = interval > 0 ? Math.min(end, System.nanoTime() + interval) : end;
            if (interval > 0)
                producer.beginTransaction();
            do {
                for (int number = 0; number < 100; number++)
                    producer.send(new ProducerRecord<>(topic, value));
                records += 100;
            } while (System.nanoTime() < until);
            if (interval > 0)
                producer.commitTransaction();
            else
                producer.flush();
            commits++;
        }
        return new long[] {records, commits};
    }
}
