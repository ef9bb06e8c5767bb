import org.apache.kafka.common.errors.InvalidMetadataException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Prints every error code of the protocol: number, name, exception class, whether retriable, whether metadata are stale. */
public class ErrorsOracle {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            Exception exception = error.exception();
            System.out.println(String.join("\t",
                Short.toString(error.code()),
                error.name(),
                exception == null ? "" : exception.getClass().getSimpleName(),
                Boolean.toString(exception instanceof RetriableException),
                Boolean.toString(exception instanceof InvalidMetadataException)));
        }
    }
}
