// Prints what the test of metrics compares with: the metrics that each of Java's clients has after it was in use, one
// per line as client, group, name and the names of the tags with commas between, and a tab between these.
//
// Arguments: the broker's address, and a topic to produce to and read from.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class MetricsOracle {
    private static void print(String client, Map<MetricName, ? extends Metric> metrics) {
        for (MetricName name : metrics.keySet())
            System.out.println(client + "\t" + name.group() + "\t" + name.name() + "\t"
                + String.join(",", new TreeSet<>(name.tags().keySet())));
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        ByteArrayDeserializer reads = new ByteArrayDeserializer();
        ByteArraySerializer writes = new ByteArraySerializer();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
            print("Admin", admin.metrics());
        }
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap), writes, writes)) {
            producer.send(new ProducerRecord<>(topic, new byte[10])).get();
            print("Producer", producer.metrics());
        }
        for (String protocol : List.of("classic", "consumer")) {
            Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", topic + protocol,
                "auto.offset.reset", "earliest", "group.protocol", protocol);
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, reads, reads)) {
                consumer.subscribe(List.of(topic));
                for (long end = System.currentTimeMillis() + 60_000; System.currentTimeMillis() < end; )
                    if (!consumer.poll(Duration.ofMillis(500)).isEmpty())
                        break;
                consumer.commitSync();
                print("Consumer " + protocol, consumer.metrics());
            }
        }
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", topic + "share");
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings, reads, reads)) {
            consumer.subscribe(List.of(topic));
            try (KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap), writes, writes)) {
                for (long end = System.currentTimeMillis() + 60_000; System.currentTimeMillis() < end; ) {
                    producer.send(new ProducerRecord<>(topic, new byte[10])).get();
                    if (!consumer.poll(Duration.ofMillis(500)).isEmpty())
                        break;
                }
            }
            consumer.commitSync();
            print("ShareConsumer", consumer.metrics());
        }
    }
}
