package lakewarden;

import java.util.Base64;
import java.util.Iterator;
import java.util.List;

import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.CommitMessageSerializer;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.utils.SerializationUtils;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.function.Function;

/**
 * Merges one bucket with Paimon's own engine, in a task on an executor. Input: "partition in base64, bucket,
 * full or minor". Output: the commit message in base64, empty if there was nothing to merge.
 *
 * Nothing is committed here. Spark may run a task again, and a task may fail half way: the files of such an
 * attempt are in no message, so no snapshot ever names them, and a sweep finds them as orphans once they are
 * old enough.
 */
public class PaimonBucketTask implements Function {
  private static final long serialVersionUID = 1L;
  private static final String USER = "lakewarden";

  private final FileStoreTable table;

  public PaimonBucketTask() {
    this(null);
  }

  public PaimonBucketTask(FileStoreTable table) {
    this.table = table;
  }

  public Object call(Object task) throws Exception {
    String[] told = ((String) task).split("\t");
    BinaryRow partition = SerializationUtils.deserializeBinaryRow(Base64.getDecoder().decode(told[0]));
    // Uses Spark's own spill folders: merging many runs may need the disk, too.
    IOManager disk = IOManager.create(SparkEnv.get().blockManager().diskBlockManager().localDirsString());
    TableWriteImpl write = (TableWriteImpl) table.newWrite(USER);
    try {
      write.withIOManager(disk);
      write.compact(partition, Integer.parseInt(told[1]), told[2].equals("full"));
      return message(write.prepareCommit(true, Long.MAX_VALUE));
    } finally {
      write.close();
      disk.close();
    }
  }

  private static String message(List messages) throws Exception {
    for (Iterator each = messages.iterator(); each.hasNext(); ) {
      CommitMessageImpl message = (CommitMessageImpl) each.next();
      if (!message.isEmpty()) {
        return Base64.getEncoder().encodeToString(new CommitMessageSerializer().serialize(message));
      }
    }
    return "";
  }
}
