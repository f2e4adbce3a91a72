// Delete files inside the driver's JVM: finds new ones and unneeded ones, and writes position deletes. Compiled
// by Janino like IcebergBridge.java, and works on its Scan; the same rules apply.
package lakewarden;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.PositionDelete;
import org.apache.iceberg.deletes.PositionDeleteWriter;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.spark.actions.RewritePositionDeleteFilesSparkAction;
import org.apache.iceberg.spark.actions.SparkActions;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.SnapshotUtil;
import org.apache.spark.sql.SparkSession;

public final class IcebergDeletes {
  private static final ObjectMapper JSON = new ObjectMapper();

  private static JsonNode at(JsonNode node, int index) {
    return (JsonNode) node.get(index);
  }

  private static JsonNode at(JsonNode node, String key) {
    return (JsonNode) node.get(key);
  }

  private static long head(Table table, String branch) {
    Snapshot snapshot = "main".equals(branch) ? table.currentSnapshot() : table.snapshot(branch);
    return snapshot == null ? -1L : snapshot.snapshotId();
  }

  /**
   * Changes to these sources since the scan: the branch's head, missing sources, delete files that apply to the
   * sources now, and new delete files (with the sources each applies to, and whether it applies to other files
   * too).
   */
  public String arrived(Table table, IcebergBridge.Scan scan, long base, String branch, String pathsJson)
      throws Exception {
    long head = head(table, branch);
    Set ours = new HashSet(Arrays.asList((String[]) JSON.readValue(pathsJson, String[].class)));
    if (head == -1L || !SnapshotUtil.isAncestorOf(table, head, base)) {
      // Rolled back to before the scan: rows that were deleted then may exist again, and are missing in the
      // outputs.
      ObjectNode elsewhere = JSON.createObjectNode();
      elsewhere.put("head", head);
      addAll(elsewhere.putArray("gone"), ours);
      elsewhere.putArray("attached");
      elsewhere.putArray("deletes");
      return elsewhere.toString();
    }
    Set seen = new HashSet();
    Map fresh = new HashMap();
    Set shared = new HashSet();
    Set attached = new HashSet();
    CloseableIterable files = ((TableScan) table.newScan().useSnapshot(head).ignoreResiduals()).planFiles();
    try {
      CloseableIterator each = files.iterator();
      while (each.hasNext()) {
        FileScanTask task = (FileScanTask) each.next();
        String path = ((DataFile) task.file()).location();
        boolean mine = ours.contains(path);
        if (mine) {
          seen.add(path);
        }
        Set known = mine ? keys(((FileScanTask) scan.tasks.get(path)).deletes()) : Collections.EMPTY_SET;
        for (int i = 0; i < task.deletes().size(); i++) {
          DeleteFile delete = (DeleteFile) task.deletes().get(i);
          String key = IcebergBridge.key(delete);
          if (!mine) {
            shared.add(key);
            continue;
          }
          attached.add(key);
          if (!known.contains(key)) {
            scan.deletesByKey.put(key, delete);
            List paths = (List) fresh.get(key);
            if (paths == null) {
              paths = new ArrayList();
              fresh.put(key, paths);
            }
            paths.add(path);
          }
        }
      }
    } finally {
      files.close();
    }
    ours.removeAll(seen);
    ObjectNode answer = JSON.createObjectNode();
    answer.put("head", head);
    addAll(answer.putArray("gone"), ours);
    addAll(answer.putArray("attached"), attached);
    ArrayNode deletes = answer.putArray("deletes");
    Iterator entries = fresh.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      ObjectNode row = deletes.addObject();
      IcebergBridge.describeDelete(row, (DeleteFile) scan.deletesByKey.get(entry.getKey()));
      row.put("shared", shared.contains(entry.getKey()));
      addAll(row.putArray("applies_to"), (List) entry.getValue());
    }
    return answer.toString();
  }

  private static Set keys(List deletes) {
    Set keys = new HashSet();
    for (int i = 0; i < deletes.size(); i++) {
      keys.add(IcebergBridge.key((DeleteFile) deletes.get(i)));
    }
    return keys;
  }

  private static void addAll(ArrayNode array, Iterable values) {
    Iterator each = values.iterator();
    while (each.hasNext()) {
      array.add(each.next().toString());
    }
  }

  /**
   * The delete files that no data file of the branch's head needs once the given data files are removed:
   * {"head": id, "unneeded": [key, ...]}. Without candidates: every delete file of the head that applies to no
   * data file.
   */
  public String unneeded(Table table, IcebergBridge.Scan scan, String branch, String removedJson, String candidatesJson)
      throws Exception {
    long head = head(table, branch);
    Set removed = new HashSet(Arrays.asList((String[]) JSON.readValue(removedJson, String[].class)));
    List candidates = Arrays.asList((String[]) JSON.readValue(candidatesJson, String[].class));
    Map live = liveDeletes(table, head);
    Set needed = needed(table, head, removed);
    Set unneeded = new HashSet(live.keySet());
    unneeded.removeAll(needed);
    if (!candidates.isEmpty()) {
      unneeded.retainAll(candidates);
    }
    ObjectNode answer = JSON.createObjectNode();
    answer.put("head", head);
    ArrayNode rows = answer.putArray("unneeded");
    Iterator each = unneeded.iterator();
    while (each.hasNext()) {
      String key = (String) each.next();
      scan.deletesByKey.put(key, live.get(key));
      rows.add(key);
    }
    return answer.toString();
  }

  private static Set needed(Table table, long snapshotId, Set removed) throws Exception {
    Set needed = new HashSet();
    CloseableIterable files = ((TableScan) table.newScan().useSnapshot(snapshotId).ignoreResiduals()).planFiles();
    try {
      CloseableIterator each = files.iterator();
      while (each.hasNext()) {
        FileScanTask task = (FileScanTask) each.next();
        if (!removed.contains(((DataFile) task.file()).location())) {
          needed.addAll(keys(task.deletes()));
        }
      }
    } finally {
      files.close();
    }
    return needed;
  }

  /** The branch's head if it has no equality deletes; -1 if it has some. */
  public long headWithoutEqualityDeletes(Table table, String branch) throws Exception {
    long head = head(table, branch);
    if (head == -1L) {
      return -1L;
    }
    Iterator live = liveDeletes(table, head).values().iterator();
    while (live.hasNext()) {
      if (((DeleteFile) live.next()).content() == FileContent.EQUALITY_DELETES) {
        return -1L;
      }
    }
    return head;
  }

  private static Map liveDeletes(Table table, long snapshotId) throws Exception {
    Map live = new HashMap();
    List manifests = table.snapshot(snapshotId).deleteManifests(table.io());
    for (int i = 0; i < manifests.size(); i++) {
      CloseableIterable entries =
          ManifestFiles.readDeleteManifest((ManifestFile) manifests.get(i), table.io(), table.specs());
      try {
        CloseableIterator each = entries.iterator();
        while (each.hasNext()) {
          DeleteFile file = (DeleteFile) ((DeleteFile) each.next()).copyWithoutStats();
          live.put(IcebergBridge.key(file), file);
        }
      } finally {
        entries.close();
      }
    }
    return live;
  }

  /**
   * Writes position deletes for new data files: [{"path", "partition", "location", "from", "rows"}], whose
   * positions are in a local file of little-endian longs. Vectors if the format version has them, otherwise one
   * delete file per data file. Returns [{"key", "path"}].
   */
  public String writeDeletes(Table table, IcebergBridge.Scan scan, String requestJson, String positionsPath)
      throws Exception {
    JsonNode request = JSON.readTree(requestJson);
    LongBuffer positions = longs(positionsPath);
    boolean vectors = IcebergBridge.formatVersion(table) >= 3;
    ArrayNode written = JSON.createArrayNode();
    for (int i = 0; i < request.size(); i++) {
      JsonNode each = at(request, i);
      DeleteFile file = vectors ? vector(table, scan, each, positions) : positionDeletes(table, scan, each, positions);
      String key = IcebergBridge.key(file);
      scan.deletesByKey.put(key, file);
      ObjectNode row = written.addObject();
      row.put("key", key);
      row.put("path", file.location());
    }
    return written.toString();
  }

  private static LongBuffer longs(String path) throws Exception {
    FileInputStream in = new FileInputStream(path);
    try {
      FileChannel channel = in.getChannel();
      ByteBuffer bytes = ByteBuffer.allocate((int) channel.size());
      while (bytes.hasRemaining() && channel.read(bytes) >= 0) {
        continue;
      }
      ((java.nio.Buffer) bytes).flip();
      return bytes.order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
    } finally {
      in.close();
    }
  }

  private static DeleteFile vector(
      final Table table, IcebergBridge.Scan scan, final JsonNode each, LongBuffer positions) throws Exception {
    Supplier output = new Supplier() {
      public Object get() {
        return table.io().newOutputFile(at(each, "location").asText());
      }
    };
    Function nothingBefore = new Function() {
      public Object apply(Object path) {
        return null;
      }
    };
    BaseDVFileWriter writer = new BaseDVFileWriter(output, nothingBefore);
    int partition = at(each, "partition").asInt();
    PartitionSpec spec = (PartitionSpec) scan.partitionSpecs.get(partition);
    StructLike values = (StructLike) scan.partitions.get(partition);
    String path = at(each, "path").asText();
    int from = at(each, "from").asInt();
    for (int i = 0; i < at(each, "rows").asInt(); i++) {
      writer.delete(path, positions.get(from + i), spec, values);
    }
    writer.close();
    return (DeleteFile) writer.result().deleteFiles().get(0);
  }

  private static DeleteFile positionDeletes(
      Table table, IcebergBridge.Scan scan, JsonNode each, LongBuffer positions) throws Exception {
    int partition = at(each, "partition").asInt();
    GenericFileWriterFactory factory = new GenericFileWriterFactory.Builder(table)
        .dataSchema(table.schema()).dataFileFormat(FileFormat.PARQUET).deleteFileFormat(FileFormat.PARQUET).build();
    PositionDeleteWriter writer = factory.newPositionDeleteWriter(
        EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(at(each, "location").asText())),
        (PartitionSpec) scan.partitionSpecs.get(partition), (StructLike) scan.partitions.get(partition));
    PositionDelete row = PositionDelete.create();
    String path = at(each, "path").asText();
    int from = at(each, "from").asInt();
    try {
      for (int i = 0; i < at(each, "rows").asInt(); i++) {
        writer.write((PositionDelete) row.set(path, positions.get(from + i)));
      }
    } finally {
      writer.close();
    }
    return writer.toDeleteFile();
  }

  /**
   * Copies a delete file to another name. The library lets a rewrite add delete files only if it also removes
   * one, so if other files still need every delete file that arrived, one of them is replaced by its own copy.
   */
  public String copyDelete(Table table, IcebergBridge.Scan scan, String key, String location) throws Exception {
    DeleteFile file = scan.delete(key);
    InputStream in = table.io().newInputFile(file.location()).newStream();
    OutputStream out = table.io().newOutputFile(location).create();
    try {
      byte[] buffer = new byte[1 << 16];
      for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
        out.write(buffer, 0, n);
      }
    } finally {
      out.close();
      in.close();
    }
    FileMetadata.Builder builder =
        FileMetadata.deleteFileBuilder((PartitionSpec) table.specs().get(Integer.valueOf(file.specId())));
    builder.copy(file);
    if (file.equalityFieldIds() != null) {
      // The library's copy omits the field ids, and a table with such a file cannot be read.
      int[] ids = new int[file.equalityFieldIds().size()];
      for (int i = 0; i < ids.length; i++) {
        ids[i] = ((Integer) file.equalityFieldIds().get(i)).intValue();
      }
      builder.ofEqualityDeletes(ids);
    }
    builder.withPath(location);
    DeleteFile copy = builder.build();
    scan.deletesByKey.put(IcebergBridge.key(copy), copy);
    return IcebergBridge.key(copy);
  }

  /** Iceberg's own merge of small position-delete files: data files are not changed. */
  public boolean mergeDeletes(
      SparkSession spark, Table table, Expression filter, int minFiles, String summaryJson) throws Exception {
    RewritePositionDeleteFilesSparkAction action = SparkActions.get(spark).rewritePositionDeletes(table);
    if (filter != null) {
      action.filter(filter);
    }
    action.option("min-input-files", Integer.toString(minFiles));
    JsonNode summary = JSON.readTree(summaryJson);
    Iterator keys = summary.fieldNames();
    while (keys.hasNext()) {
      String key = (String) keys.next();
      action.snapshotProperty(key, at(summary, key).asText());
    }
    return action.execute().rewrittenDeleteFilesCount() > 0;
  }

  // ---------------------------------------------------------------- how well clustered

  /**
   * The share of a partition's files that a query for one value must open, averaged over the column's range:
   * {"partition id": {"column": share, ...}, ...} for the scanned files.
   */
  public String clustering(Table table, IcebergBridge.Scan scan, String columnsJson) throws Exception {
    String[] columns = (String[]) JSON.readValue(columnsJson, String[].class);
    Map byPartition = new HashMap();
    Iterator entries = scan.tasks.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      Object partition = scan.partitionOf.get(entry.getKey());
      List files = (List) byPartition.get(partition);
      if (files == null) {
        files = new ArrayList();
        byPartition.put(partition, files);
      }
      files.add(((FileScanTask) entry.getValue()).file());
    }
    ObjectNode answer = JSON.createObjectNode();
    Iterator partitions = byPartition.entrySet().iterator();
    while (partitions.hasNext()) {
      Map.Entry entry = (Map.Entry) partitions.next();
      shares(answer.putObject(entry.getKey().toString()), table, (List) entry.getValue(), columns);
    }
    return answer.toString();
  }

  /** The same for outputs of this run that are one partition's new files. */
  public String clusteringOfOutputs(Table table, IcebergBridge.Scan scan, String pathsJson, String columnsJson)
      throws Exception {
    String[] paths = (String[]) JSON.readValue(pathsJson, String[].class);
    List files = new ArrayList();
    for (int i = 0; i < paths.length; i++) {
      files.add(scan.output(paths[i]));
    }
    ObjectNode answer = JSON.createObjectNode();
    shares(answer, table, files, (String[]) JSON.readValue(columnsJson, String[].class));
    return answer.toString();
  }

  private static void shares(ObjectNode answer, Table table, List files, String[] columns) {
    for (int c = 0; c < columns.length; c++) {
      Types.NestedField field = table.schema().findField(columns[c]);
      List lower = new ArrayList();
      List upper = new ArrayList();
      for (int i = 0; i < files.size(); i++) {
        DataFile file = (DataFile) files.get(i);
        Object low = bound(field, file.lowerBounds());
        Object high = bound(field, file.upperBounds());
        if (low != null && high != null) {
          lower.add(low);
          upper.add(high);
        }
      }
      answer.put(columns[c], share(lower, upper, files.size() - lower.size(), files.size()));
    }
  }

  private static Object bound(Types.NestedField field, Map bounds) {
    Object bytes = bounds == null ? null : bounds.get(Integer.valueOf(field.fieldId()));
    return bytes == null ? null : Conversions.fromByteBuffer(field.type(), (ByteBuffer) bytes);
  }

  /**
   * How many files hold a value, averaged over the column's range: the sum of the lengths of the files' ranges,
   * divided by the length of the whole range. (Testing only where files begin and end gives half of that for
   * files that all overlap.)
   */
  private static double share(List lower, List upper, int unknown, int files) {
    if (lower.isEmpty()) {
      return 1.0;
    }
    byte[] shared = commonPrefix(lower, upper);
    double least = Double.POSITIVE_INFINITY;
    double most = Double.NEGATIVE_INFINITY;
    double covered = 0;
    for (int i = 0; i < lower.size(); i++) {
      double low = position(lower.get(i), shared.length);
      double high = position(upper.get(i), shared.length);
      least = Math.min(least, low);
      most = Math.max(most, high);
      covered += high - low;
    }
    double opened = most > least ? covered / (most - least) : lower.size();
    if (Double.isNaN(opened) || Double.isInfinite(opened)) {
      return 1.0; // an infinite range gives no information
    }
    // Even if every file holds one value, a query for that value opens the file.
    return Math.min(1.0, Math.max(1.0, opened + unknown) / files);
  }

  /** The position of a value as a number; for texts, of the first letters after their common prefix. */
  private static double position(Object value, int skipped) {
    if (value instanceof Number) {
      return ((Number) value).doubleValue();
    }
    if (value instanceof Boolean) {
      return ((Boolean) value).booleanValue() ? 1 : 0;
    }
    byte[] letters = letters(value);
    double total = 0;
    double weight = 1;
    for (int i = skipped; i < letters.length && i < skipped + 6; i++) {
      weight /= 256;
      total += (letters[i] & 0xff) * weight;
    }
    return total;
  }

  private static byte[] commonPrefix(List lower, List upper) {
    List all = new ArrayList(lower);
    all.addAll(upper);
    if (all.get(0) instanceof Number || all.get(0) instanceof Boolean) {
      return new byte[0];
    }
    byte[] shared = letters(all.get(0));
    for (int i = 1; i < all.size(); i++) {
      byte[] other = letters(all.get(i));
      int same = 0;
      while (same < shared.length && same < other.length && shared[same] == other[same]) {
        same++;
      }
      shared = Arrays.copyOf(shared, same);
    }
    return shared;
  }

  private static byte[] letters(Object value) {
    if (value instanceof ByteBuffer) {
      ByteBuffer bytes = (ByteBuffer) ((ByteBuffer) value).duplicate();
      byte[] copy = new byte[bytes.remaining()];
      bytes.get(copy);
      return copy;
    }
    if (value instanceof UUID) {
      UUID uuid = (UUID) value;
      return ByteBuffer.allocate(16).putLong(uuid.getMostSignificantBits()).putLong(uuid.getLeastSignificantBits()).array();
    }
    return value.toString().getBytes(StandardCharsets.UTF_8);
  }
}
