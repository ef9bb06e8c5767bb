import java.util.Arrays;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A Java client of old, written so that it compiles against Kafka 0.9 and newer: produces to a topic, prints the offsets,
 * reads the topic as a member of a group, prints the records, commits and prints what is committed.
 *
 * Arguments: the broker's address, the topic, the group, the codec, how many records to write, and how many to read.
 */
public final class OldClient {
    public static void main(String[] arguments) throws Exception {
        write(arguments[0], arguments[1], arguments[3], Integer.parseInt(arguments[4]));
        read(arguments[0], arguments[1], arguments[2], Integer.parseInt(arguments[5]));
    }

    private static Map<String, Object> settings(String bootstrap) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private static void write(String bootstrap, String topic, String codec, int count) throws Exception {
        Map<String, Object> settings = settings(bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", 20);
        settings.put("compression.type", codec);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < count; number++)
                sent.add(producer.send(new ProducerRecord<>(topic, 0, "key " + number, codec + " " + number)));
            for (Future<RecordMetadata> each : sent)
                System.out.println("sent " + each.get().offset());
        }
    }

    private static void read(String bootstrap, String topic, String group, int count) {
        Map<String, Object> settings = settings(bootstrap);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(Arrays.asList(topic));
            long deadline = System.currentTimeMillis() + 60_000;
            for (int seen = 0; seen < count && System.currentTimeMillis() < deadline; )
                for (ConsumerRecord<String, String> record : consumer.poll(500)) {
                    System.out.println("read " + record.offset() + " " + record.key() + " " + record.value());
                    seen++;
                }
            consumer.commitSync();
            System.out.println("committed "
                + consumer.committed(new org.apache.kafka.common.TopicPartition(topic, 0)).offset());
        }
    }
}
