import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main classes of Kafka's tools in one JVM, one after another.
 *
 * A call on standard input is a number of texts, and the texts: what the tool reads, its class, its arguments. The answer
 * is its exit code, what it wrote on standard output, and on standard error. A text is its length in bytes, and UTF-8;
 * numbers are four bytes, the highest first.
 */
public final class ToolsRunner {
    private static final long HOOK_MS = 20_000;

    private static final List<Runnable> hooks = new CopyOnWriteArrayList<>();
    private static volatile CompletableFuture<Integer> ended;

    public static void main(String[] ignored) throws Exception {
        DataInputStream calls = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(System.out);
        System.setOut(System.err);  // what is logged is no answer
        PrintStream logged = System.err;
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        while (true) {
            int count;
            try {
                count = calls.readInt();
            } catch (EOFException error) {
                Runtime.getRuntime().halt(0);
                return;
            }
            byte[] input = calls.readNBytes(calls.readInt());
            String[] command = new String[count - 1];
            for (int index = 0; index < command.length; index++)
                command[index] = new String(calls.readNBytes(calls.readInt()), StandardCharsets.UTF_8);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(input));
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            int status;
            try {
                status = run(command);
            } finally {
                System.out.flush();
                System.err.flush();
                System.setIn(InputStream.nullInputStream());
                System.setOut(logged);
                System.setErr(logged);
            }
            answers.writeInt(status);
            write(answers, out);
            write(answers, errors);
            answers.flush();
        }
    }

    private static void write(DataOutputStream answers, ByteArrayOutputStream text) throws IOException {
        byte[] bytes = text.toByteArray();
        answers.writeInt(bytes.length);
        answers.write(bytes);
    }

    /** Where a tool exits: what called this does nothing any more. */
    private static void end(int status) {
        ended.complete(status);
        while (true)
            LockSupport.park();
    }

    private static int run(String[] command) throws Exception {
        String[] arguments = new String[command.length - 1];
        System.arraycopy(command, 1, arguments, 0, arguments.length);
        ended = new CompletableFuture<>();
        hooks.clear();
        Thread tool = new Thread(() -> {
            try {
                Class.forName(command[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
                end(0);
            } catch (InvocationTargetException error) {
                error.getCause().printStackTrace();
                end(1);  // as the JVM itself
            } catch (ReflectiveOperationException error) {
                error.printStackTrace();
                end(1);
            }
        });
        tool.setDaemon(true);
        tool.start();
        int status = ended.get();
        for (Runnable hook : hooks) {  // as the JVM does when it exits
            Thread last = new Thread(hook);
            last.setDaemon(true);
            last.start();
            last.join(HOOK_MS);
        }
        return status;
    }
}
