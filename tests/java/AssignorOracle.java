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
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Answers what Kafka's own assignors decide, one case per line:
 * ASSIGNOR|TOPIC:COUNT:RACKS,...|MEMBER;INSTANCE;GENERATION;TOPIC,...;TOPIC:PARTITION,...;RACK|...
 * where RACKS, if there are any, are those of the replicas of each partition, as in x+y/x/z.
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
        Map<String, List<PartitionInfo>> topics = new TreeMap<>();
        for (String item : parts[1].isEmpty() ? new String[0] : parts[1].split(",")) {
            String[] fields = item.split(":", -1);
            String[] racks = fields[2].split("/", -1);
            List<PartitionInfo> infos = new ArrayList<>();
            for (int number = 0; number < Integer.parseInt(fields[1]); number++) {
                Node[] replicas = Arrays.stream(number < racks.length ? racks[number].split("\\+") : new String[0])
                    .map(rack -> new Node(0, "host", 1, rack.isEmpty() ? null : rack)).toArray(Node[]::new);
                infos.add(new PartitionInfo(fields[0], number, Node.noNode(), replicas, replicas));
            }
            topics.put(fields[0], infos);
        }
        Map<String, Subscription> members = new TreeMap<>();
        for (String member : Arrays.asList(parts).subList(2, parts.length)) {
            String[] fields = member.split(";", -1);
            List<String> wanted = fields[3].isEmpty() ? List.of() : List.of(fields[3].split(","));
            Subscription subscription = new Subscription(
                wanted, null, partitions(fields[4]), Integer.parseInt(fields[2]),
                fields[5].isEmpty() ? Optional.empty() : Optional.of(fields[5]));
            if (!fields[1].isEmpty()) {
                subscription.setGroupInstanceId(Optional.of(fields[1]));
            }
            members.put(fields[0], subscription);
        }
        return new TreeMap<>(assignor.assignPartitions(topics, members)).entrySet().stream()
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
