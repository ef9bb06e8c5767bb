// Prints what the tests of the gateway's settings compare with: each setting of a broker, of a topic and of a group,
// one per line as kind, name, type, default, validator and how it can be changed, with tabs between.

import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

public class BrokerSettingsOracle {
    static void settings(String of, Map<String, ConfigDef.ConfigKey> keys, Map<String, String> modes) {
        for (ConfigDef.ConfigKey key : new TreeMap<>(keys).values()) {
            String value = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE
                ? "<required>" : ConfigDef.convertToString(key.defaultValue, key.type);
            System.out.println(String.join("\t", of, key.name, key.type.toString(), value == null ? "<null>" : value,
                String.valueOf(key.validator).replace('\n', ' '), modes.getOrDefault(key.name, "read-only"),
                key.internalConfig ? "internal" : "public"));
        }
    }

    public static void main(String[] arguments) {
        settings("broker", AbstractKafkaConfig.CONFIG_DEF.configKeys(), DynamicBrokerConfig.dynamicConfigUpdateModes());
        settings("topic", LogConfig.configKeys(), Map.of());
        settings("group", GroupConfig.CONFIG_DEF.configKeys(), Map.of());
    }
}
