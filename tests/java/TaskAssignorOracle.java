import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.assignor.TopologyDescriber;

/**
 * Answers what the assignor of tasks of Kafka's group coordinator decides, one case per line:
 * STANDBYS|SUBTOPOLOGY:TASKS:STATEFUL,...|MEMBER;PROCESS;ACTIVE;STANDBY|... where tasks are SUBTOPOLOGY:NUMBER,...
 * The answer is MEMBER=ACTIVE;STANDBY|... ordered by member.
 */
public class TaskAssignorOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split("\\|", -1)));
        }
    }

    private record Part(int tasks, boolean stateful) {
    }

    private static Map<String, Set<Integer>> tasks(String text) {
        Map<String, Set<Integer>> found = new TreeMap<>();
        for (String item : text.isEmpty() ? new String[0] : text.split(",")) {
            String[] pair = item.split(":");
            found.computeIfAbsent(pair[0], key -> new TreeSet<>()).add(Integer.parseInt(pair[1]));
        }
        return found;
    }

    private static String text(Map<String, Set<Integer>> tasks) {
        List<String> items = new ArrayList<>();
        new TreeMap<>(tasks).forEach((name, numbers) ->
            new TreeSet<>(numbers).forEach(number -> items.add(name + ":" + number)));
        return String.join(",", items);
    }

    private static String answer(String[] fields) {
        Map<String, Part> parts = new LinkedHashMap<>();
        for (String part : fields[1].split(",")) {
            String[] each = part.split(":");
            parts.put(each[0], new Part(Integer.parseInt(each[1]), each[2].equals("1")));
        }
        Map<String, AssignmentMemberSpec> members = new HashMap<>();
        for (String text : Arrays.asList(fields).subList(2, fields.length)) {
            String[] each = text.split(";", -1);
            members.put(each[0], new AssignmentMemberSpec(Optional.empty(), Optional.empty(), tasks(each[2]), tasks(each[3]),
                Map.of(), each[1], Map.of(), Map.of(), Map.of()));
        }
        TopologyDescriber topology = new TopologyDescriber() {
            @Override
            public List<String> subtopologies() {
                return List.copyOf(parts.keySet());
            }

            @Override
            public int maxNumInputPartitions(String name) {
                return parts.get(name).tasks();
            }

            @Override
            public boolean isStateful(String name) {
                return parts.get(name).stateful();
            }
        };
        Map<String, MemberAssignment> found = new TreeMap<>(new StickyTaskAssignor()
            .assign(new GroupSpecImpl(members, Map.of("num.standby.replicas", fields[0])), topology).members());
        return found.entrySet().stream()
            .map(each -> each.getKey() + "=" + text(each.getValue().activeTasks()) + ";" + text(each.getValue().standbyTasks()))
            .collect(Collectors.joining("|"));
    }
}
