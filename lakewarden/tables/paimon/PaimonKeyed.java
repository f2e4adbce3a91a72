package lakewarden;

import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.io.DataFilePathFactory;
import org.apache.paimon.manifest.ManifestEntry;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.CommitMessageSerializer;
import org.apache.paimon.utils.FileStorePathFactory;
import org.apache.paimon.utils.SerializationUtils;
import org.apache.spark.api.java.JavaSparkContext;

/** Tables with primary keys: the state of each bucket, and merging buckets on executors. */
public class PaimonKeyed {
  private static final ObjectMapper JSON = new ObjectMapper();

  /**
   * Returns {mode, hidden, buckets: [[partition in base64, its folder, bucket, files, bytes, rows, sorted runs,
   * files in level 0, bytes in the lowest level], ...]}. `hidden` says that readers do not see level 0.
   */
  public String buckets(FileStoreTable table, long snapshot) throws Exception {
    int lowest = table.coreOptions().numLevels() - 1;
    Map found = new LinkedHashMap();
    Iterator entries = table.store().newScan().withSnapshot(snapshot).dropStats().plan().files().iterator();
    while (entries.hasNext()) {
      ManifestEntry entry = (ManifestEntry) entries.next();
      List key = new ArrayList();
      key.add(entry.partition());
      key.add(Integer.valueOf(entry.bucket()));
      // files, bytes, rows, level 0, bytes of the lowest level, and a bit for each level that has files
      long[] sums = (long[]) found.get(key);
      if (sums == null) {
        sums = new long[6];
        List own = new ArrayList();
        own.add(entry.partition().copy());
        own.add(Integer.valueOf(entry.bucket()));
        found.put(own, sums);
      }
      int level = entry.file().level();
      sums[0] += 1;
      sums[1] += entry.file().fileSize();
      sums[2] += entry.file().rowCount();
      sums[3] += level == 0 ? 1 : 0;
      sums[4] += level == lowest ? entry.file().fileSize() : 0;
      sums[5] |= level == 0 ? 0L : 1L << Math.min(level, 62);
    }
    FileStorePathFactory folders = table.store().pathFactory();
    List rows = new ArrayList();
    for (Iterator each = found.entrySet().iterator(); each.hasNext(); ) {
      rows.add(row((Map.Entry) each.next(), folders));
    }
    Map told = new HashMap();
    told.put("mode", table.bucketMode().name());
    told.put("hidden", Boolean.valueOf(table.coreOptions().batchScanSkipLevel0()));
    told.put("buckets", rows);
    return JSON.writeValueAsString(told);
  }

  private static List row(Map.Entry entry, FileStorePathFactory folders) throws Exception {
    List key = (List) entry.getKey();
    long[] sums = (long[]) entry.getValue();
    org.apache.paimon.data.BinaryRow partition = (org.apache.paimon.data.BinaryRow) key.get(0);
    String folder = folders.relativeBucketPath(partition, 0).toString();
    List row = new ArrayList();
    row.add(Base64.getEncoder().encodeToString(SerializationUtils.serializeBinaryRow(partition)));
    row.add(folder.substring(0, Math.max(0, folder.length() - "/bucket-0".length())));
    row.add(key.get(1));
    row.add(Long.valueOf(sums[0]));
    row.add(Long.valueOf(sums[1]));
    row.add(Long.valueOf(sums[2]));
    // Every file of level 0 is a separate run; each level below is one.
    row.add(Long.valueOf(sums[3] + Long.bitCount(sums[5])));
    row.add(Long.valueOf(sums[3]));
    row.add(Long.valueOf(sums[4]));
    return row;
  }

  /**
   * Merges every bucket in its own task and returns the messages of the merged ones. `trigger` is how many
   * sorted runs a minor merge may leave. Tables whose writers do not compact are set to `write-only`, which
   * must not apply here.
   */
  public List merge(JavaSparkContext spark, FileStoreTable table, List tasks, int trigger) throws Exception {
    Map options = new HashMap();
    options.put("write-only", "false");
    options.put("num-sorted-run.compaction-trigger", String.valueOf(trigger));
    // The default depends on the trigger if the table sets no value; the levels must stay the ones that its
    // writers use.
    options.put("num-levels", String.valueOf(table.coreOptions().numLevels()));
    PaimonBucketTask task = new PaimonBucketTask((FileStoreTable) table.copy(options));
    List told = spark.parallelize(tasks, tasks.size()).map(task).collect();
    CommitMessageSerializer serializer = new CommitMessageSerializer();
    List messages = new ArrayList();
    for (Iterator each = told.iterator(); each.hasNext(); ) {
      String message = (String) each.next();
      if (message.length() > 0) {
        messages.add(serializer.deserialize(serializer.getVersion(), Base64.getDecoder().decode(message)));
      }
    }
    return messages;
  }

  /** Returns {before, after, bytes_before, bytes_after, rows_before, rows_after, paths}: the totals of the messages, and every
file they add. */
  public String told(FileStoreTable table, List messages) throws Exception {
    long[] sums = new long[6];
    List paths = new ArrayList();
    for (Iterator each = messages.iterator(); each.hasNext(); ) {
      CommitMessageImpl message = (CommitMessageImpl) each.next();
      DataFilePathFactory folder =
          table.store().pathFactory().createDataFilePathFactory(message.partition(), message.bucket());
      for (Iterator files = message.compactIncrement().compactBefore().iterator(); files.hasNext(); ) {
        DataFileMeta file = (DataFileMeta) files.next();
        sums[0] += 1;
        sums[2] += file.fileSize();
        sums[5] += file.rowCount();
      }
      Set gone = names(message.compactIncrement().compactBefore());
      for (Iterator files = message.compactIncrement().compactAfter().iterator(); files.hasNext(); ) {
        DataFileMeta file = (DataFileMeta) files.next();
        sums[1] += 1;
        sums[3] += file.fileSize();
        sums[4] += file.rowCount();
        // A file that only moved to another level keeps its name: it is no output, and must never be removed as
        // one.
        if (!gone.contains(file.fileName())) {
          addPaths(paths, file, folder);
        }
      }
      for (Iterator files = message.compactIncrement().changelogFiles().iterator(); files.hasNext(); ) {
        addPaths(paths, (DataFileMeta) files.next(), folder);
      }
    }
    Map found = new HashMap();
    found.put("before", Long.valueOf(sums[0]));
    found.put("after", Long.valueOf(sums[1]));
    found.put("bytes_before", Long.valueOf(sums[2]));
    found.put("bytes_after", Long.valueOf(sums[3]));
    found.put("rows_before", Long.valueOf(sums[5]));
    found.put("rows_after", Long.valueOf(sums[4]));
    found.put("paths", paths);
    return JSON.writeValueAsString(found);
  }

  private static Set names(List files) {
    Set found = new HashSet();
    for (Iterator each = files.iterator(); each.hasNext(); ) {
      found.add(((DataFileMeta) each.next()).fileName());
    }
    return found;
  }

  private static void addPaths(List paths, DataFileMeta file, DataFilePathFactory folder) {
    for (Iterator each = file.collectFiles(folder).iterator(); each.hasNext(); ) {
      paths.add(each.next().toString());
    }
  }
}
