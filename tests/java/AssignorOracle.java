import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;

import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.TopicPartition;

/**
 * Answers what Kafka's own assignors decide, one case per line:
 * ASSIGNOR|TOPIC:COUNT,...|MEMBER;INSTANCE;GENERATION;TOPIC,...;TOPIC:PARTITION,...|...
 * The answer is MEMBER=TOPIC:PARTITION,...|... ordered by member.
 */
public class AssignorOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split("\\|", -1)));
        }
    }

    private static String answer(String[] parts) {
        AbstractPartitionAssignor assignor = switch (parts[0]) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            default -> new CooperativeStickyAssignor();
        };
        Map<String, Integer> topics = new TreeMap<>();
        for (TopicPartition topic : partitions(parts[1])) {
            topics.put(topic.topic(), topic.partition());
        }
        Map<String, Subscription> members = new TreeMap<>();
        for (String member : Arrays.asList(parts).subList(2, parts.length)) {
            String[] fields = member.split(";", -1);
            List<String> wanted = fields[3].isEmpty() ? List.of() : List.of(fields[3].split(","));
            Subscription subscription = new Subscription(
                wanted, null, partitions(fields[4]), Integer.parseInt(fields[2]), Optional.empty());
            if (!fields[1].isEmpty()) {
                subscription.setGroupInstanceId(Optional.of(fields[1]));
            }
            members.put(fields[0], subscription);
        }
        return new TreeMap<>(assignor.assign(topics, members)).entrySet().stream()
            .map(entry -> entry.getKey() + "=" + entry.getValue().stream()
                .map(p -> p.topic() + ":" + p.partition()).collect(Collectors.joining(",")))
            .collect(Collectors.joining("|"));
    }

    private static List<TopicPartition> partitions(String text) {
        List<TopicPartition> result = new ArrayList<>();
        for (String item : text.isEmpty() ? new String[0] : text.split(",")) {
            String[] pair = item.split(":");
            result.add(new TopicPartition(pair[0], Integer.parseInt(pair[1])));
        }
        return result;
    }
}
