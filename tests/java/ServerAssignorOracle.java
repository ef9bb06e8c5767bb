import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.MemberAssignmentImpl;

/**
 * Answers what the assignors of Kafka's group coordinator decide, one case per line; topics are numbers:
 * ASSIGNOR|TOPIC:COUNT,...|MEMBER;INSTANCE;TOPIC,...;TOPIC:PARTITION,...|...
 * The answer is MEMBER=TOPIC:PARTITION,...|... ordered by member.
 */
public class ServerAssignorOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split("\\|", -1)));
        }
    }

    private record Member(Set<Uuid> topics, Optional<String> instance, Map<Uuid, Set<Integer>> target)
        implements MemberSubscription {
        @Override
        public Optional<String> rackId() {
            return Optional.empty();
        }

        @Override
        public Optional<String> instanceId() {
            return instance;
        }

        @Override
        public Set<Uuid> subscribedTopicIds() {
            return topics;
        }
    }

    private static Uuid uuid(String number) {
        return new Uuid(0, Long.parseLong(number));
    }

    private static String answer(String[] parts) {
        PartitionAssignor assignor = switch (parts[0]) {
            case "range" -> new RangeAssignor();
            case "simple" -> new SimpleAssignor();
            default -> new UniformAssignor();
        };
        Map<Uuid, Integer> counts = new LinkedHashMap<>();
        for (String topic : parts[1].split(",")) {
            counts.put(uuid(topic.split(":")[0]), Integer.parseInt(topic.split(":")[1]));
        }
        Map<String, Member> members = new LinkedHashMap<>();
        Map<Uuid, Set<Integer>> held = new TreeMap<>();
        Set<Set<Uuid>> subscriptions = new LinkedHashSet<>();
        for (String text : Arrays.asList(parts).subList(2, parts.length)) {
            String[] fields = text.split(";", -1);
            Set<Uuid> topics = new LinkedHashSet<>();
            for (String topic : fields[2].split(",")) {
                topics.add(uuid(topic));
            }
            subscriptions.add(topics);
            Map<Uuid, Set<Integer>> target = new TreeMap<>();
            for (String item : fields[3].isEmpty() ? new String[0] : fields[3].split(",")) {
                String[] pair = item.split(":");
                target.computeIfAbsent(uuid(pair[0]), key -> new TreeSet<>()).add(Integer.parseInt(pair[1]));
                held.computeIfAbsent(uuid(pair[0]), key -> new TreeSet<>()).add(Integer.parseInt(pair[1]));
            }
            Optional<String> instance = fields[1].isEmpty() ? Optional.empty() : Optional.of(fields[1]);
            members.put(fields[0], new Member(topics, instance, Collections.unmodifiableMap(target)));
        }
        GroupSpec group = new GroupSpec() {
            @Override
            public Collection<String> memberIds() {
                return members.keySet();
            }

            @Override
            public SubscriptionType subscriptionType() {
                return subscriptions.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
            }

            @Override
            public boolean isPartitionAssigned(Uuid topic, int partition) {
                return held.getOrDefault(topic, Set.of()).contains(partition);
            }

            @Override
            public boolean isPartitionAssignable(Uuid topic, int partition) {
                return true;
            }

            @Override
            public MemberSubscription memberSubscription(String member) {
                return members.get(member);
            }

            @Override
            public MemberAssignment memberAssignment(String member) {
                return new MemberAssignmentImpl(members.get(member).target());
            }
        };
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topic) {
                return counts.getOrDefault(topic, -1);
            }

            @Override
            public Set<String> racksForPartition(Uuid topic, int partition) {
                return Set.of();
            }
        };
        Map<String, String> told = new TreeMap<>();
        assignor.assign(group, describer).members().forEach((member, assignment) -> {
            List<String> items = new ArrayList<>();
            new TreeMap<>(assignment.partitions()).forEach((topic, partitions) ->
                new TreeSet<>(partitions).forEach(number ->
                    items.add(topic.getLeastSignificantBits() + ":" + number)));
            told.put(member, String.join(",", items));
        });
        return told.entrySet().stream().map(entry -> entry.getKey() + "=" + entry.getValue())
            .collect(Collectors.joining("|"));
    }
}
