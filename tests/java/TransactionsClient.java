import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client in histories of transactions: takes the arguments and prints the lines of tests/transaction_worker.py,
 * which says what they mean.
 */
public final class TransactionsClient {
    private static String bootstrap;
    private static String topic;
    private static String name;
    private static int partitions;
    private static int timeoutMs;
    private static Random dice;
    private static int runs;
    private static int values;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        String role = arguments[1];
        topic = arguments[2];
        partitions = Integer.parseInt(arguments[3]);
        String id = arguments[4];
        name = arguments[5];
        timeoutMs = Integer.parseInt(arguments[6]);
        dice = new Random(Long.parseLong(arguments[7]));
        while (true) {
            runs++;
            say("run " + run());
            try {
                if (role.equals("append"))
                    append(id);
                else if (role.equals("copy"))
                    copy(id);
                else
                    read(role);
            } catch (ProducerFencedException error) {
                say("error " + error);
                Runtime.getRuntime().halt(0);
            } catch (KafkaException | IllegalStateException error) {
                say("error " + error);
            }
            Thread.sleep(100);
        }
    }

    private static String run() {
        return name + "." + runs;
    }

    private static synchronized void say(String line) {
        byte[] data = (line + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(data, 0, data.length);
        System.out.flush();
    }

    private static void append(String id) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(id)) {
            producer.initTransactions();
            while (true) {
                say("begin " + System.nanoTime());
                producer.beginTransaction();
                for (int count = 1 + dice.nextInt(4); count > 0; count--) {
                    send(producer, topic, dice.nextInt(partitions));
                    Thread.sleep(dice.nextInt(2) * dice.nextInt(50));
                }
                if (dice.nextInt(20) == 0)
                    Thread.sleep(dice.nextInt(2 * timeoutMs));
                end(producer, dice.nextInt(5) > 0);
                Thread.sleep(dice.nextInt(100));
            }
        }
    }

    private static void copy(String id) throws Exception {
        Map<String, Object> settings = reading();
        settings.put("group.id", topic);
        settings.put("isolation.level", "read_committed");
        try (KafkaProducer<byte[], byte[]> producer = producer(id);
                KafkaConsumer<byte[], byte[]> consumer =
                    new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic));
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty())
                    continue;
                say("begin " + System.nanoTime());
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (TopicPartition each : records.partitions()) {
                    List<ConsumerRecord<byte[], byte[]>> found = records.records(each);
                    long first = found.get(0).offset();
                    polled(run() + "@" + first, each, found);
                    offsets.put(each, new OffsetAndMetadata(consumer.position(each)));
                    say("consumed " + topic + " " + each.partition() + " " + first + " " + offsets.get(each).offset());
                }
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : records)
                    send(producer, topic + "-copy", record.partition());
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (!end(producer, dice.nextInt(10) > 0))
                    return;  // the next run begins with what is committed
            }
        }
    }

    private static void read(String level) {
        Map<String, Object> settings = reading();
        settings.put("isolation.level", level);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            for (String each : List.of(topic, topic + "-copy"))
                for (int partition = 0; partition < partitions; partition++)
                    all.add(new TopicPartition(each, partition));
            consumer.assign(all);
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
                for (TopicPartition each : records.partitions())
                    polled(run(), each, records.records(each));
            }
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String id) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", id,
            "transaction.timeout.ms", timeoutMs, "request.timeout.ms", 5000, "delivery.timeout.ms", 15000,
            "max.block.ms", 20000);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static Map<String, Object> reading() {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("session.timeout.ms", 6000);
        settings.put("heartbeat.interval.ms", 500);
        settings.put("max.poll.records", 20);
        return settings;
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String target, int partition) {
        String value = run() + "-" + ++values;
        say("send " + target + " " + partition + " " + value);
        producer.send(new ProducerRecord<>(target, partition, null, value.getBytes(StandardCharsets.UTF_8)),
            (metadata, error) -> {
                if (error == null)
                    say("acked " + value + " " + metadata.offset());
            });
    }

    private static boolean end(KafkaProducer<byte[], byte[]> producer, boolean commit) {
        if (commit) {
            say("committing " + System.nanoTime());
            try {
                again(producer::commitTransaction);
                say("committed " + System.nanoTime());
                return true;
            } catch (ProducerFencedException error) {
                throw error;
            } catch (KafkaException error) {
                say("error " + error);
            }
        }
        say("aborting " + System.nanoTime());
        again(producer::abortTransaction);
        say("aborted " + System.nanoTime());
        return false;
    }

    /** Wait for an end once more where it takes longer than a call may. */
    private static void again(Runnable end) {
        for (int attempt = 0; attempt < 3; attempt++) {
            try {
                end.run();
                return;
            } catch (TimeoutException error) {
                say("error " + error);
            }
        }
        end.run();
    }

    private static void polled(String session, TopicPartition from, List<ConsumerRecord<byte[], byte[]>> records) {
        StringBuilder line = new StringBuilder("poll " + System.nanoTime() + " " + session + " " + from.topic() + " "
            + from.partition());
        for (ConsumerRecord<byte[], byte[]> record : records)
            line.append(" ").append(record.offset()).append(":")
                .append(new String(record.value(), StandardCharsets.UTF_8));
        say(line.toString());
    }
}
