// Prints what the test of public methods compares with: the names of the methods that each of the four clients'
// interfaces has, one per line as client, name, and whether all of that name are deprecated, with a tab between.

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ShareConsumer;
import org.apache.kafka.clients.producer.Producer;

public class MethodsOracle {
    static void methods(String client, Class<?> face) {
        TreeMap<String, Boolean> deprecated = new TreeMap<>();
        for (Method method : face.getMethods()) {
            if (!Modifier.isStatic(method.getModifiers())) {
                deprecated.merge(method.getName(), method.isAnnotationPresent(Deprecated.class), Boolean::logicalAnd);
            }
        }
        deprecated.forEach((name, old) -> System.out.println(client + "\t" + name + "\t" + old));
    }

    public static void main(String[] arguments) {
        methods("Admin", Admin.class);
        methods("Consumer", Consumer.class);
        methods("Producer", Producer.class);
        methods("ShareConsumer", ShareConsumer.class);
    }
}
