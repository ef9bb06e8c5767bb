import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client: prints what is in a topic, and produces records with every codec to others.
 *
 * Arguments: the broker's address, the topic to read, how many of its partitions, how many records are in them, how many
 * records to write with each codec, the codecs with commas between them, and the topics to write.
 */
public final class RecordsClient {
    public static void main(String[] arguments) throws Exception {
        read(arguments[0], arguments[1], Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
        for (int index = 6; index < arguments.length; index++)
            for (String codec : arguments[5].split(","))
                write(arguments[0], arguments[index], codec, Integer.parseInt(arguments[4]));
    }

    private static void read(String bootstrap, String topic, int wanted, int count) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest",
            "check.crcs", true);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int partition = 0; partition < wanted; partition++)
                partitions.add(new TopicPartition(topic, partition));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.currentTimeMillis() + 60_000;
            for (int seen = 0; seen < count && System.currentTimeMillis() < deadline; )
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println(printed(record));
                    seen++;
                }
        }
    }

    private static String printed(ConsumerRecord<byte[], byte[]> record) {
        StringJoiner line = new StringJoiner(" ").add("" + record.partition()).add("" + record.offset())
            .add("" + record.timestamp()).add("" + record.timestampType().id).add(text(record.key()))
            .add(text(record.value()));
        for (Header header : record.headers())
            line.add(text(header.key().getBytes(StandardCharsets.UTF_8))).add(text(header.value()));
        return line.toString();
    }

    private static void write(String bootstrap, String topic, String codec, int count) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "compression.type", codec,
            "linger.ms", 1000, "enable.idempotence", false);  // old formats have no producer ids
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int number = 0; number < count; number++) {
                byte[] key = number % 5 == 0 ? null : ("key " + number).getBytes(StandardCharsets.UTF_8);
                byte[] value = number % 5 == 4 ? null
                    : (codec + " " + number + " ".repeat(number)).getBytes(StandardCharsets.UTF_8);
                sent.add(producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + number, key, value)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent)
                future.get();
        }
    }

    private static String text(byte[] data) {
        return data == null ? "-" : "=" + Base64.getEncoder().encodeToString(data);
    }
}
