// Commits by the thousand for the benches, inside the driver's JVM: what a streaming writer leaves behind in months.
// Compiled by Janino, so no generics and no lambdas.
package bench;

import java.io.File;
import java.io.FileOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.Table;

public final class LongHistory {
  private final List paths = new ArrayList();

  /** So many commits of so many files each. A file is a few bytes on disk; its metrics are those of a real one.
   *  Of a folder that is not on disk only the metadata is made: whoever calls puts 64 bytes under each name. */
  public synchronized void append(Table table, String folder, int commits, int filesPerCommit, int columns, int from, boolean onDisk)
      throws Exception {
    if (from == 0) {
      paths.clear();  // a new table: what was appended to others is not its to compact
    }
    for (int commit = from; commit < from + commits; commit++) {
      AppendFiles append = table.newFastAppend();
      for (int i = 0; i < filesPerCommit; i++) {
        append.appendFile(file(table, folder, commit, i, columns, onDisk));
      }
      append.commit();
    }
  }

  /** The first half of the files is replaced by one in a hundred, in one commit: their compaction. */
  public void compactHalf(Table table, String folder, int columns, boolean onDisk) throws Exception {
    List half = paths.subList(0, paths.size() / 2);
    RewriteFiles rewrite = table.newRewrite();
    for (int i = 0; i < half.size(); i++) {
      rewrite.deleteFile((DataFile) half.get(i));
    }
    for (int i = 0; i < half.size() / 100; i++) {
      rewrite.addFile(file(table, folder, -1, i, columns, onDisk));
    }
    rewrite.commit();
    paths.clear();
  }

  private DataFile file(Table table, String folder, int commit, int number, int columns, boolean onDisk) throws Exception {
    String day = "day=2024-01-" + String.format("%02d", new Object[] {Integer.valueOf(1 + Math.abs(commit) % 28)});
    String name = String.format("%05d-%04d-5f0c1d7e-61ab-4f57-9c5b-0e1f2a3b4c5d-00001.parquet",
        new Object[] {Integer.valueOf(commit), Integer.valueOf(number)});
    String path = folder + "/" + day + "/" + name;
    boolean elsewhere = folder.indexOf("://") >= 0;
    if (onDisk && !elsewhere) {
      write(new File(path));
    }
    DataFile made = DataFiles.builder(table.spec())
        .withPath(elsewhere ? path : "file:" + path)
        .withFileSizeInBytes(64L)
        .withFormat("parquet")
        .withPartitionPath(day)
        .withMetrics(metrics(commit, number, columns))
        .build();
    if (commit >= 0 && !elsewhere) {
      paths.add(made);
    }
    return made;
  }

  private static void write(File local) throws Exception {
    local.getParentFile().mkdirs();
    FileOutputStream out = new FileOutputStream(local);
    out.write(new byte[64]);
    out.close();
  }

  private static Metrics metrics(int commit, int number, int columns) {
    Map sizes = new HashMap();
    Map values = new HashMap();
    Map nulls = new HashMap();
    Map lower = new HashMap();
    Map upper = new HashMap();
    for (int id = 1; id <= columns; id++) {
      Integer key = Integer.valueOf(id);
      sizes.put(key, Long.valueOf(1000000L + commit * 7919L + number * 31L + id));
      values.put(key, Long.valueOf(40000L));
      nulls.put(key, Long.valueOf(id));
      lower.put(key, number(commit * 1000L + number));
      upper.put(key, number(commit * 1000L + number + 500L));
    }
    return new Metrics(Long.valueOf(40000L), sizes, values, nulls, new HashMap(), lower, upper);
  }

  private static ByteBuffer number(long value) {
    ByteBuffer buffer = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
    buffer.putLong(value);
    buffer.flip();
    return buffer;
  }
}
